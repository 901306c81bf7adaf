"""From uint8 pixels to the position of the true label, by the deployed prediction code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from costcert.certification.deployment import Deployed
from costcert.datasets.pictures import as_picture
from costcert.errors import CostcertError
from costcert.geometry.ablations import Kept
from costcert.geometry.footprints import Footprint, footprint
from costcert.geometry.patches import Certified, OnePatch, Original, Several
from costcert.geometry.preparation import Preparation
from costcert.geometry.sizes import ImageSize
from costcert.geometry.touch import touched
from costcert.models.classifier import Ballots, Classifier, Logits, Pending, Pixels
from costcert.votes.defence import Defence, Soft
from costcert.votes.table import Votes

Positions = npt.NDArray[np.int64]


class Judge:
    """A deployed classifier that takes the pictures that patches are painted on.

    These are inputs of the model, or pictures before they are resized if the patch is on the original.

    Args:
        patch: the patch of the attack and of the certificates.
        original: the size of the pictures, if the patch is on the original.
    """

    def __init__(
        self, model: Classifier, classifier: Defence, patch: Certified, original: ImageSize | None = None
    ) -> None:
        if isinstance(classifier.mask, Original) and not isinstance(patch, Original):
            raise CostcertError(
                f"the classifier masks for {classifier.mask}, so it has to see pictures before they are "
                f"resized: attack it with a patch on the original, such as {classifier.mask}"
            )
        self.model, self.patch, self.original = model, patch, original
        self.at_input: OnePatch | Several | Footprint
        if isinstance(patch, Original):
            assert original is not None
            self.deployed = Deployed.of(model, classifier)
            self.at_input = footprint(patch, original, _preparation(model, patch))
        else:
            self.deployed = Deployed.of(_Prepared(model), classifier)
            self.at_input = patch
        self.classifier = self.deployed.classifier
        self.touched = touched(self.classifier.ablation, self.at_input, model.image_size)

    @property
    def soft(self) -> Soft | None:
        return self.classifier.soft

    def own_pixels(self, image: Image.Image) -> Pixels:
        """The pixels [h, w, C] that a patch may rewrite: of the model's input, or of the original."""
        if self.original is None:
            return self.model.prepare(image)
        pixels = np.array(image.convert("L" if self.model.channels == 1 else "RGB"), dtype=np.uint8)
        return pixels[..., None] if pixels.ndim == 2 else pixels

    def inputs(self, pixels: Pixels) -> Pixels:
        """[N, H, W, C], the model's inputs for these pictures [N, h, w, C]."""
        if self.original is None:
            return pixels
        return np.stack([self.model.prepare(as_picture(picture)) for picture in pixels])

    def votes(self, pixels: Pixels, truth: npt.NDArray[Any]) -> Votes:
        """Evaluate all mutants of these images."""
        return self.deployed.votes(list(pixels), truth)

    def positions(self, votes: Votes) -> Positions:
        """[N], the position of the true label in the prediction."""
        listed = self.deployed.ranked(votes, votes.num_classes)
        positions: Positions = np.argmax(listed == votes.truth[:, None], axis=1) + 1
        return positions

    def certified(self, votes: Votes) -> Positions:
        """[N], min-k with ties broken as in the prediction: the worst position the true label can reach."""
        found = self.deployed.certify_votes(votes, self.patch, ties="lowest")
        return found.min_k(self.deployed.defender.name, self.patch)


def _preparation(model: Classifier, patch: Original) -> Preparation:
    if model.preparation is None:
        raise CostcertError(
            f"{patch} is a patch on the original picture, but {model!r} does not say how it prepares "
            "pictures: define its `preparation`, or name a patch on the input, such as square:2"
        )
    return model.preparation.geometry


class _Prepared(Classifier):
    """A classifier whose images are at input size already, so that `prepare` does not resize."""

    def __init__(self, model: Classifier) -> None:
        self._model = model
        self.num_classes, self.image_size, self.channels = model.num_classes, model.image_size, model.channels
        self.class_names, self.ablation = model.class_names, model.ablation
        self.precision = model.precision

    def prepare(self, image: Image.Image) -> Pixels:
        pixels = np.array(image, dtype=np.uint8)
        return pixels[..., None] if pixels.ndim == 2 else pixels

    def logits(self, images: Pixels, regions: Sequence[Kept]) -> Logits:
        return self._model.logits(images, regions)

    def begin(self, images: Pixels, regions: Sequence[Kept]) -> Pending:
        return self._model.begin(images, regions)

    @property
    def calls_at_once(self) -> int:
        return self._model.calls_at_once

    def in_one_batch(self, images: Pixels, regions: Sequence[Kept]) -> Logits:
        return self._model.in_one_batch(images, regions)

    def metadata(self) -> Mapping[str, Any]:
        return self._model.metadata()


def rewritten(
    votes: Votes, images: npt.NDArray[Any], rows: npt.NDArray[Any], mutants: npt.NDArray[Any], new: Ballots
) -> Votes:
    """The votes of these images with some ballots replaced: `mutants[m]` of row `rows[m]` casts `new[m]`."""
    part = votes.take(images)
    ballots = part.ballots.copy()
    ballots[rows, mutants] = new.labels
    # An image may occur more than once, so ids are made again; margins and cuts were those of other ballots.
    changes: dict[str, Any] = {"ballots": ballots, "image_ids": None, "margins": None, "cuts": None}
    if part.labels is not None and part.units is not None:
        labels, units = part.labels.copy(), part.units.copy()
        assert new.soft_labels is not None
        assert new.soft_units is not None
        labels[rows, mutants], units[rows, mutants] = new.soft_labels, new.soft_units
        changes |= {"labels": labels, "units": units}
    return part.replace(**changes)


def differing(before: Votes, after: Votes) -> npt.NDArray[np.bool_]:
    """[N, B], mutants whose ballots differ, by as little as one unit."""
    differs: npt.NDArray[np.bool_] = before.ballots != after.ballots
    for mine, theirs in ((before.labels, after.labels), (before.units, after.units)):
        if mine is not None and theirs is not None:
            differs |= (mine != theirs).any(axis=2)
    return differs
