"""What the page shows: ballots, pictures and certificates of one run, looked up by the image's id."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from costcert import __version__
from costcert.certification.certificates import Certificates
from costcert.certification.certify import certify
from costcert.defenders import chosen, find
from costcert.errors import CostcertError
from costcert.explorer.image import Labelled, Terms, ballots_json
from costcert.explorer.limits import MOST_MASKED, forget, masked_cost, reasonable
from costcert.explorer.pictures import Pictures
from costcert.geometry.ablations import Ablation
from costcert.geometry.patches import Patch, Rectangle, Square
from costcert.geometry.sizes import ImageSize
from costcert.geometry.touch import touched
from costcert.reports.style import looks
from costcert.votes.table import Votes

# Numbers of certificates that are kept, and the fewest patches they are kept for.
_KEPT, _KEPT_PATCHES = 1 << 23, 8
# Sides of the stickers on the curve, as parts of the image's shorter side.
_SIDES = (1 / 28, 2 / 28, 4 / 28, 6 / 28, 8 / 28, 11 / 28, 14 / 28)
# List lengths on the curve.
LONGEST_LIST = 20


class UnknownImageError(CostcertError):
    """An id that no image has."""


@dataclass(frozen=True)
class BallotView:
    """One way to count the same ballots, and the defenders that can."""

    votes: Votes
    defenders: list[str]
    terms: Terms


class Table(NamedTuple):
    """Certificates of all images against one patch, which touches at most `budget` mutants."""

    certificates: Certificates
    patch: Square | Rectangle
    budget: int


class Session:
    """One run.

    Args:
        votes: as they were cast, or, with certificates, as they were certified.
        certificates: made before; what they do not hold is certified when somebody asks.
        pictures: where the images are at hand.
    """

    def __init__(
        self,
        votes: Votes,
        *,
        name: str = "votes",
        terms: Terms | None = None,
        certificates: Certificates | None = None,
        pictures: Pictures | None = None,
    ) -> None:
        self.name = name
        self.pictures = pictures
        self.terms = terms or Terms()
        self.certificates = certificates
        self.views = self._views(votes)
        self._rows = {str(image): row for row, image in enumerate(votes.image_ids)}
        self._made: OrderedDict[tuple[str, str], Table] = OrderedDict()
        self._making = threading.Lock()

    @property
    def mask(self) -> Patch | None:
        """The patch that masking defenders mask for, where the run has one for all."""
        return None if self.certificates is None else self.certificates.classifier.mask

    @property
    def votes(self) -> Votes:
        return next(iter(self.views.values())).votes

    def _views(self, votes: Votes) -> dict[str, BallotView]:
        """Hard ballots first, which are understood at sight; certificates speak of one kind alone."""
        kinds = {"soft": votes} if votes.is_soft else {"hard": votes}
        if votes.is_soft and self.certificates is None:
            kinds = {"hard": votes.hard(), "soft": votes}
        views = {}
        for kind, ballots in kinds.items():
            terms = self.terms if ballots.is_soft else Terms(self.terms.ties, self.terms.epsilon)
            if self.certificates is not None:
                names = self.certificates.defenders
            else:
                partial = ballots.known is not None
                names = [each.name for each in chosen("all", soft=ballots.is_soft, partial=partial)]
            kept = [name for name in names if not find(name).masks or self._masks(ballots)]
            views[kind] = BallotView(ballots, kept, terms)
        return views

    @staticmethod
    def _masks(votes: Votes) -> bool:
        """Whether PatchGuard's windows can be compared for patches of every size."""
        sizes = (1, max(1, min(votes.image_size) // 2))
        if votes.num_mutants > 4096:
            return False
        return all(masked_cost(votes, Square(size)) <= MOST_MASKED for size in sizes)

    def view(self, kind: str | None) -> BallotView:
        if kind is None:
            return next(iter(self.views.values()))
        if kind not in self.views:
            raise CostcertError(f"these ballots are counted as {' or '.join(self.views)}, not as {kind!r}")
        return self.views[kind]

    def row(self, image: str) -> int:
        if image not in self._rows:
            raise UnknownImageError(f"no image is called {image[:80]!r}")
        return self._rows[image]

    def summary(self) -> dict[str, Any]:
        """All that the page needs to know before it asks for an image."""
        votes = self.votes
        height, width = votes.image_size
        defenders = list(dict.fromkeys(name for view in self.views.values() for name in view.defenders))
        sides = sorted({max(1, round(part * min(height, width))) for part in _SIDES})
        if self.certificates is not None:
            known = [patch.side for patch in self.certificates.patches if isinstance(patch, Square)]
            sides = sorted(known) or sides
        return {
            "version": __version__,
            "name": self.name,
            "images": len(votes),
            "image_size": [height, width],
            "num_classes": votes.num_classes,
            "class_names": None if votes.class_names is None else list(votes.class_names),
            "num_mutants": votes.num_mutants,
            "ablation": str(votes.ablation),
            "parts": _segments(votes.ablation, votes.image_size),
            "ties": self.terms.ties,
            "views": {
                kind: {
                    "cap": view.votes.cap,
                    "defenders": view.defenders,
                    "epsilon": view.terms.epsilon,
                    "tau": min(view.terms.tau, view.votes.cap),
                }
                for kind, view in self.views.items()
            },
            "defenders": {
                name: {
                    "title": find(name).title,
                    "colour": look.colour,
                    "width": 1.4 * look.width,
                    # matplotlib counts dashes in widths of the line, a browser in pixels.
                    "dash": []
                    if isinstance(look.dash, str)
                    else [2 * look.width * part for part in look.dash[1]],
                }
                for name, look in looks(defenders).items()
            },
            "sides": sides,
            "pictures": self.pictures is not None,
            "model_name": self.model_name,
        }

    @property
    def model_name(self) -> str | None:
        made: Mapping[str, Any] = self.votes.provenance.get("model") or {}
        return str(made["name"]) if made.get("name") else None

    def images(self) -> dict[str, Any]:
        votes = self.votes
        unread = [] if votes.unread is None else np.flatnonzero(votes.unread).tolist()
        return {"ids": votes.image_ids.tolist(), "truth": votes.truth.tolist(), "unread": unread}

    def ballots(self, image: str, kind: str | None = None) -> dict[str, Any]:
        """How the mutants of one image voted."""
        view = self.view(kind)
        return {"image": image, **ballots_json(view.votes.take([self.row(image)]), view.terms)}

    def table(self, patch: str, kind: str | None = None) -> Table:
        """Rank and min-k of all images against one patch, made once."""
        view = self.view(kind)
        sticker = reasonable(patch, view.votes.ablation, view.votes.image_size)
        key = (kind or next(iter(self.views)), str(sticker))
        if key in self._made:
            return self._made[key]
        # One at a time: each keeps all cores busy, and whoever waits may find it made.
        with self._making:
            if key in self._made:
                return self._made[key]
            made = self._known(sticker) or certify(
                view.votes,
                sticker,
                view.defenders,
                ties=view.terms.ties,
                epsilon=view.terms.epsilon,
                tau=view.terms.tau,
                mask=self.mask,
            )
            cases = touched(view.votes.ablation, sticker, view.votes.image_size)
            self._made[key] = Table(made, sticker, cases.delta)
            forget(cases)
            numbers = 2 * len(made) * len(view.defenders)
            while len(self._made) > max(_KEPT_PATCHES, _KEPT // numbers):
                self._made.popitem(last=False)
            return self._made[key]

    def _known(self, patch: Square | Rectangle) -> Certificates | None:
        given = self.certificates
        return None if given is None or patch not in given.patches else given.select(patches=[patch])

    def certificates_of(self, patch: str, kind: str | None = None) -> dict[str, Any]:
        (made, sticker, budget), view = self.table(patch, kind), self.view(kind)
        return {
            "patch": str(sticker),
            "budget": budget,
            "defenders": {
                name: {
                    "rank": made.rank(name, sticker).tolist(),
                    "min_k": made.min_k(name, sticker).tolist(),
                }
                for name in view.defenders
            },
        }

    def accuracy(self, patch: str, kind: str | None = None) -> dict[str, Any]:
        """Clean and certified accuracy for every list length on the curve."""
        (made, sticker, _), view = self.table(patch, kind), self.view(kind)
        longest = min(LONGEST_LIST, made.num_classes)
        accuracy = made.accuracy(range(1, longest + 1))
        return {
            "patch": str(sticker),
            "images": len(made),
            "k": list(range(1, longest + 1)),
            "defenders": {
                name: {
                    "clean": accuracy[accuracy.defender == name].clean.tolist(),
                    "certified": accuracy[accuracy.defender == name].certified.tolist(),
                }
                for name in view.defenders
            },
        }

    def labelled(self, image: str, label: int | None, kind: str | None) -> Labelled:
        view = self.view(kind)
        row = self.row(image)
        if view.votes.unread is not None and view.votes.unread[row]:
            raise CostcertError(f"{image!r} could not be read when the votes were cast: it has no ballots")
        return Labelled.of(view.votes, row, label, view.terms, self.mask)


def _segments(ablation: Ablation, image_size: ImageSize) -> list[dict[str, list[list[int]]]]:
    """What mutants keep, along each axis, in the order of the ballots."""
    return [
        {"rows": [list(each) for each in part.rows], "columns": [list(each) for each in part.columns]}
        for part in ablation.parts(image_size)
    ]
