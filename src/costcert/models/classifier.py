"""The interface of a classifier: logits of every kept region of every image.

Every classifier must follow one rule: the logits of a mutant depend on its kept pixels and their position,
and on nothing else. They do not change when pixels outside its region are rewritten
(tests/models/test_hiding.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from costcert.geometry.ablations import Ablation, Kept
from costcert.geometry.sizes import ImageSize, shown
from costcert.votes.ballots import Ballots as Ballots
from costcert.votes.ballots import Logits as Logits
from costcert.votes.ballots import ballots_of as ballots_of
from costcert.votes.defence import Soft as Soft

if TYPE_CHECKING:
    from PIL.Image import Image

    from costcert.models.preprocessing import Preprocessing

Pixels = npt.NDArray[np.uint8]


class Pending:
    """Logits that are computed when they are needed; a subclass may compute them from the beginning."""

    def __init__(self, compute: Callable[[], Logits]) -> None:
        self._compute = compute

    def result(self) -> Logits:
        return self._compute()

    def cancel(self) -> None:
        """Leave out what has not begun: the result is not needed."""


class Classifier(ABC):
    """Computes logits of mutants.

    `prepare` does everything that mixes pixels (resizing, cropping); the threat model applies to its output,
    so patch sizes are in its pixels. `logits` may only normalise pixel by pixel, or within the kept region.
    """

    num_classes: int
    image_size: ImageSize
    channels: int = 3
    class_names: tuple[str, ...] | None = None
    # The ablation it was trained on, if known.
    ablation: Ablation | None = None
    # The type it computes in, which decides how far rounding moves logits.
    precision: str = "float32"
    # Whether `logits` also takes inputs that were normalised elsewhere, as float32 [N, H, W, C].
    takes_normalised: bool = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.num_classes} classes, {shown(self.image_size)} input)"

    @abstractmethod
    def prepare(self, image: Image) -> Pixels:
        """The model's input as uint8 pixels [H, W, C]."""

    def refuse(self, regions: Sequence[Kept]) -> None:
        """Raise where the model cannot see such mutants: here nowhere."""
        return

    @abstractmethod
    def logits(self, images: Pixels, regions: Sequence[Kept]) -> Logits:
        """Logits [N, R, L] of the mutants of images [N, H, W, C], one mutant per region."""

    def begin(self, images: Pixels, regions: Sequence[Kept]) -> Pending:
        """Begin to compute `logits`, if that is possible beside other work."""
        return Pending(partial(self.logits, images, regions))

    @property
    def calls_at_once(self) -> int:
        """How many calls of `begin` at once keep all cores busy."""
        return 1

    def in_one_batch(self, images: Pixels, regions: Sequence[Kept]) -> Logits:
        """The same as `logits`, in as few batches as fit into memory, regardless of the batch size.

        Used to detect models whose logits depend on the rest of the batch (batch_dependence.py).
        """
        return self.logits(images, regions)

    @property
    def preparation(self) -> Preprocessing | None:
        """The claim that `prepare` returns what this returns, for every picture; None if nothing is claimed.

        Patches on the original picture are followed through it to the input, so a false claim makes false
        certificates. Only classifiers that make it, and record it in `metadata`, are certified against them.
        """
        return None

    @abstractmethod
    def metadata(self) -> Mapping[str, Any]:
        """For the manifest: name, digest of the weights, preprocessing, how pixels are hidden."""
