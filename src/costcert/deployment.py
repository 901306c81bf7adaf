"""The classifier that certificates speak of, from pictures to a list of labels.

It votes with the code that made the certified votes, and ranks labels with the defender that was certified:
what is promised is what is deployed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image

from costcert.certificates import Certificates
from costcert.certification import AnyPatch, certify
from costcert.datasets.base import Dataset
from costcert.defenders import find
from costcert.errors import CostcertError
from costcert.geometry.ablations import Ablation, parse_ablation
from costcert.geometry.patches import concrete
from costcert.geometry.sizes import whole
from costcert.geometry.touch import Touched, touched
from costcert.models.classifier import Classifier, Soft
from costcert.polling import Poll
from costcert.votes import Votes

# A picture as Pillow has it, or its pixels: [H, W] or [H, W, 3] whole numbers 0 to 255.
Picture = Image.Image | npt.NDArray[np.uint8]


class Deployed:
    """Gives the top k of pictures.

    Args:
        ablation: what each mutant keeps; by default what the model was trained to see.
        defender: whose prediction and certificates these are.
        patch: what a defender that masks, such as PatchGuard, masks for; others need none.
        soft: vote with soft ballots, made this way.
    """

    def __init__(
        self,
        model: Classifier,
        ablation: Ablation | str | None = None,
        *,
        defender: str = "costcert",
        patch: AnyPatch | None = None,
        soft: Soft | None = None,
    ) -> None:
        known = parse_ablation(ablation) if isinstance(ablation, str) else ablation or model.ablation
        if known is None:
            raise CostcertError(
                "the model does not say what mutants keep: pass an ablation, as in columns:19"
            )
        self.model, self.ablation, self.soft = model, known, soft
        self.defender = find(defender)
        if soft is not None and not self.defender.reads_soft:
            raise CostcertError(f"{self.defender.title} does not read soft ballots: leave soft out")
        if patch is None and not self.defender.ranks_by_votes:
            raise CostcertError(
                f"{self.defender.title} predicts by masking a patch: say which, as in square:32"
            )
        self._touched = (
            Touched.nothing(known.count(model.image_size))
            if patch is None
            else touched(known, concrete(patch, model.image_size), model.image_size)
        )

    def predict(self, pictures: Picture | Iterable[Picture], k: int = 5) -> npt.NDArray[np.int64]:
        """[N, k], the labels of each picture, best first."""
        if whole(k, "k") > self.model.num_classes:
            raise CostcertError(f"the model tells {self.model.num_classes} classes apart, so k is no {k}")
        return self.defender.predict(self.votes(pictures), self._touched, k)

    def certify(
        self,
        pictures: Picture | Iterable[Picture],
        labels: npt.ArrayLike,
        patches: AnyPatch | Iterable[AnyPatch],
        *,
        ties: str = "against",
    ) -> Certificates:
        """For a label of each picture, the smallest k for which it stays in the top k."""
        return certify(self.votes(pictures, labels), patches, [self.defender.name], ties=ties)

    def votes(self, pictures: Picture | Iterable[Picture], labels: npt.ArrayLike | None = None) -> Votes:
        """How all mutants vote; where nobody says what the pictures show, label 0 stands in for it."""
        given = [pictures] if isinstance(pictures, Image.Image | np.ndarray) else list(pictures)
        shown = _Pictures(given, np.zeros(len(given), np.int64) if labels is None else labels)
        poll = Poll(self.model, shown, self.ablation, soft=self.soft)
        (votes,) = poll.shards([range(len(shown))], poll.about(), lambda done: None)
        return votes


class _Pictures(Dataset):
    """Pictures at hand."""

    def __init__(self, pictures: Sequence[Picture], labels: npt.ArrayLike) -> None:
        super().__init__("pictures", [str(index) for index in range(len(pictures))], labels)
        self._pictures = pictures

    def image(self, index: int) -> Image.Image:
        picture = self._pictures[index]
        if isinstance(picture, Image.Image):
            return picture
        fits = picture.dtype == np.uint8 and (picture.ndim == 2 or picture.shape[2:] in ((1,), (3,)))
        if not fits or picture.size == 0:
            raise CostcertError(
                "a picture is an image of Pillow, or whole numbers 0 to 255 (uint8) of shape [height, width] "
                f"or [height, width, 3], got {picture.dtype} of shape {picture.shape}"
            )
        return Image.fromarray(picture[..., 0] if picture.shape[2:] == (1,) else picture)
