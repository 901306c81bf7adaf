"""A classifier with a dozen weights, in numpy, whose logits depend only on kept pixels and their position."""

import time

import numpy as np
from PIL import Image

from costcert.datasets.arrays import ArrayDataset
from costcert.geometry.ablations import Hidden
from costcert.models.classifier import Classifier


class Tiny(Classifier):
    """A linear classifier of three features of a region, or of all pixels that are not hidden by masks.

    Args:
        drift: what is added to a logit per mutant evaluated in the same call.
        pause: seconds per image, for tests that stop a run.
        precision: the precision it reports; in half precision larger drifts are accepted.
    """

    num_classes = 4
    image_size = (6, 8)
    channels = 1

    def __init__(self, seed=0, *, drift=0.0, pause=0.0, class_names=None, precision="float32"):
        self.seed, self.drift, self.pause, self.precision = seed, drift, pause, precision
        self.class_names = class_names
        self.weights = np.random.default_rng(seed).normal(size=(3, self.num_classes)).astype(np.float32)
        shape = (*self.image_size, self.num_classes)
        self.filters = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
        self.evaluated = []

    def prepare(self, image):
        grey = image.convert("L").resize((self.image_size[1], self.image_size[0]), Image.Resampling.NEAREST)
        return np.asarray(grey)[..., None]

    def logits(self, images, regions):
        self.evaluated.append((len(images), len(regions)))
        time.sleep(self.pause * len(images))
        logits = np.empty((len(images), len(regions), self.num_classes), dtype=np.float32)
        height, width = self.image_size
        for mutant, region in enumerate(regions):
            kept = region.pixels((height, width))
            for image, pixels in enumerate(images):
                visible = pixels[..., 0][kept].astype(np.float32) / 255
                if isinstance(region, Hidden):
                    logits[image, mutant] = (visible - 0.5) @ self.filters[kept]
                    continue
                features = np.array([visible.mean(), visible.max(), region.columns.start / width], np.float32)
                logits[image, mutant] = features @ self.weights
        logits[..., 0] += self.drift * len(images) * len(regions)
        return logits

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


def for_masks(count=24, seed=1):
    """Images that `Tiny` recognises under masks, the first ones hardly and the last ones clearly."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, count)
    clear = np.moveaxis(Tiny().filters > 0, 2, 0)[labels] * 255
    share = np.linspace(0, 1, count)[:, None, None]
    images = share * clear + (1 - share) * rng.integers(0, 256, clear.shape)
    return ArrayDataset("for masks", images.astype(np.uint8), labels)


class Leaky(Tiny):
    """An invalid classifier: its logits depend on the brightness of the entire image."""

    def logits(self, images, regions):
        logits = super().logits(images, regions)
        logits[..., 1] += images.mean(axis=(1, 2, 3))[:, None]
        logits[..., 2] += (255 - images).mean(axis=(1, 2, 3))[:, None]
        return logits


def greys(count=6):
    """Images that `Leaky` classifies correctly by using pixels outside of regions."""
    images = np.random.default_rng(0).integers(120, 136, (count, 6, 8), dtype=np.uint8)
    return ArrayDataset("greys", images, (images.mean(axis=(1, 2)) < 127.5) + 1)
