"""What a classifier is: logits for every kept region of every image, and how they become ballots.

The rule every classifier here obeys: a mutant depends on its kept pixels and their position, and on nothing
else. So what it says does not change when anything outside its region is rewritten
(tests/models/test_hiding.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from costcert.errors import CostcertError
from costcert.geometry.ablations import Ablation, Region
from costcert.geometry.sizes import ImageSize
from costcert.votes.defence import Soft as Soft

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = npt.NDArray[np.uint8]
Logits = npt.NDArray[np.float32]


class Classifier(ABC):
    """Gives logits of mutants.

    `prepare` does whatever mixes pixels (resizing, cropping) before the threat model applies: patches are
    counted on what it returns. `logits` may only normalise pixel by pixel, or within the kept region.
    """

    num_classes: int
    image_size: ImageSize
    channels: int = 3
    class_names: tuple[str, ...] | None = None
    # What it was trained to see, where that is known.
    ablation: Ablation | None = None
    # What it computes in; how far rounding moves logits depends on it.
    precision: str = "float32"

    @abstractmethod
    def prepare(self, image: Image) -> Pixels:
        """[H, W, C], the model's input as whole pixels."""

    @abstractmethod
    def logits(self, images: Pixels, regions: Sequence[Region]) -> Logits:
        """[N, R, L] for images [N, H, W, C], of which every mutant sees its region alone."""

    def in_one_batch(self, images: Pixels, regions: Sequence[Region]) -> Logits:
        """What `logits` gives, from as few batches as fit into memory, whatever batch size is set.

        To find out whether the others in a batch matter (batch_dependence.py).
        """
        return self.logits(images, regions)

    @abstractmethod
    def metadata(self) -> Mapping[str, Any]:
        """For the manifest: name, digest of the weights, preprocessing, how hidden pixels are shown."""


class Ballots(NamedTuple):
    """What mutants say: [..., L] logits become a label, a margin and, if asked for, a soft ballot.

    Args:
        margins: best minus second logit; above what logits can move by, the label stays what it is.
        cuts: the last logit that the soft ballot names minus the first it does not; the same for its labels.
    """

    labels: npt.NDArray[np.int32]
    margins: npt.NDArray[np.float32]
    soft_labels: npt.NDArray[np.int32] | None = None
    soft_units: npt.NDArray[np.int32] | None = None
    cuts: npt.NDArray[np.float32] | None = None


def ballots_of(logits: Logits, soft: Soft | None = None) -> Ballots:
    """Best label (ties to the lowest), best minus second logit, and the soft ballot."""
    if not np.isfinite(logits).all():
        raise CostcertError("the model gives NaN or infinite logits: its weights or its input are broken")
    labels = logits.argmax(axis=-1).astype(np.int32)
    margins = _gap_after(logits, 1)
    if soft is None:
        return Ballots(labels, margins)
    if soft.temperature is None:
        raise CostcertError("soft ballots need a temperature: these were made elsewhere, and it is not known")
    scaled = logits.astype(np.float64) / soft.temperature
    share = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    share /= share.sum(axis=-1, keepdims=True)
    best = min(soft.best, logits.shape[-1])
    order = _best_first(share, best)
    units = np.floor(np.take_along_axis(share, order, axis=-1) * soft.cap).astype(np.int32)
    return Ballots(labels, margins, order.astype(np.int32), units, _gap_after(logits, best))


def _gap_after(logits: Logits, best: int) -> npt.NDArray[np.float32]:
    """The `best`-th largest logit minus the next; infinite where there is no next."""
    if best >= logits.shape[-1]:
        return np.full(logits.shape[:-1], np.inf, dtype=np.float32)
    top = np.partition(logits, (-best - 1, -best), axis=-1)
    return (top[..., -best] - top[..., -best - 1]).astype(np.float32)


def _best_first(share: npt.NDArray[np.float64], best: int) -> npt.NDArray[np.int64]:
    """Places of the `best` largest shares, ties to the lowest place."""
    least = np.partition(share, -best, axis=-1)[..., -best, None]
    # Of those that equal the least one, the first few: as a stable sort of all of them would choose.
    larger, equal = share > least, share == least
    missing = best - larger.sum(axis=-1, keepdims=True)
    chosen = larger | (equal & (equal.cumsum(axis=-1) <= missing))
    places = chosen.nonzero()[-1].reshape(*share.shape[:-1], best)
    order = np.argsort(-np.take_along_axis(share, places, axis=-1), axis=-1, kind="stable")
    return np.take_along_axis(places, order, axis=-1)
