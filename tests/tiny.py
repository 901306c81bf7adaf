"""A classifier of a few numbers, which needs numpy alone and obeys the rule: kept pixels and their place."""

import time

import numpy as np
from PIL import Image

from costcert.datasets.arrays import ArrayDataset
from costcert.models.classifier import Classifier


class Tiny(Classifier):
    """Args:
    drift: how far logits move with each further mutant asked for at once.
    pause: seconds for each image, for tests that stop a run.
    precision: what it says it computes in; in half precision logits may drift further.
    """

    num_classes = 4
    image_size = (6, 8)
    channels = 1

    def __init__(self, seed=0, *, drift=0.0, pause=0.0, class_names=None, precision="float32"):
        self.seed, self.drift, self.pause, self.precision = seed, drift, pause, precision
        self.class_names = class_names
        self.weights = np.random.default_rng(seed).normal(size=(3, self.num_classes)).astype(np.float32)
        self.asked = []

    def prepare(self, image):
        grey = image.convert("L").resize((self.image_size[1], self.image_size[0]), Image.Resampling.NEAREST)
        return np.asarray(grey)[..., None]

    def logits(self, images, regions):
        self.asked.append((len(images), len(regions)))
        time.sleep(self.pause * len(images))
        answers = np.empty((len(images), len(regions), self.num_classes), dtype=np.float32)
        height, width = self.image_size
        for place, region in enumerate(regions):
            kept = np.ix_(region.rows.pixels(height), region.columns.pixels(width))
            for image, pixels in enumerate(images):
                seen = pixels[..., 0][kept].astype(np.float32) / 255
                features = np.array([seen.mean(), seen.max(), region.columns.start / width], np.float32)
                answers[image, place] = features @ self.weights
        answers[..., 0] += self.drift * len(images) * len(regions)
        return answers

    def metadata(self):
        return {"name": "tiny", "digest": f"seed {self.seed}", "preprocessing": {}, "hide": "crop"}


def pictures(count=10, seed=1, *, class_names=None):
    rng = np.random.default_rng(seed)
    return ArrayDataset(
        "pictures",
        rng.integers(0, 256, (count, 6, 8), dtype=np.uint8),
        rng.integers(0, 4, count),
        class_names=class_names,
    )


class Leaky(Tiny):
    """Lets every mutant see how bright the whole picture is, against the rule."""

    def logits(self, images, regions):
        answers = super().logits(images, regions)
        answers[..., 1] += images.mean(axis=(1, 2, 3))[:, None]
        answers[..., 2] += (255 - images).mean(axis=(1, 2, 3))[:, None]
        return answers


def greys(count=6):
    """Pictures that `Leaky` gets right by looking beyond its region."""
    images = np.random.default_rng(0).integers(120, 136, (count, 6, 8), dtype=np.uint8)
    return ArrayDataset("greys", images, (images.mean(axis=(1, 2)) < 127.5) + 1)
