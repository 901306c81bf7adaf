"""A session: ballots, pictures and certificates of one run, looked up by the id of an image."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from costcert import __version__
from costcert.certification.certificates import Certificates
from costcert.certification.certify import certify
from costcert.defenders import chosen, find
from costcert.errors import CostcertError
from costcert.explorer.image import LabelledImage, Terms, ballots_json, with_label
from costcert.explorer.limits import (
    MAX_COUNTED_SIZES,
    MAX_MASKING_COST,
    Sticker,
    TooManySizesError,
    checked_sticker,
    clear_large_cache,
    footprints_of,
    known_sticker,
    masking_cost,
)
from costcert.explorer.originals import footprint_json, stickers_on_originals
from costcert.explorer.pictures import Pictures
from costcert.geometry.ablations import Ablation, Masks
from costcert.geometry.patches import AreaShare, Original, Patch, Rectangle, Several, Shape, Square
from costcert.geometry.sizes import ImageSize
from costcert.geometry.touch import touched
from costcert.reports.glossary import WORDS
from costcert.reports.style import looks
from costcert.reports.tables.layout import Cell
from costcert.votes.table import Votes

if TYPE_CHECKING:
    import pandas as pd

# Cache of certificates: ranks and min-ks in all, and patches that it holds at least.
_CACHED_NUMBERS, _CACHED_PATCHES = 1 << 23, 8
# Sides of the stickers on the curve, as shares of the image's shorter side.
_SIDES = (1 / 28, 2 / 28, 4 / 28, 6 / 28, 8 / 28, 11 / 28, 14 / 28)
# Words of the page that are explained, beside its defenders.
_WORDS = ("patch", "ballot", "soft ballot", "top k", "rank", "certified", "min-k", "no promise", "defender")
# The largest k on the curve.
MAX_K = 20


class UnknownImageError(CostcertError):
    """No image has this id."""


@dataclass(frozen=True)
class BallotView:
    """The ballots counted as hard or as soft, and the defenders that support it."""

    votes: Votes
    defenders: list[str]
    terms: Terms


class PatchTable(NamedTuple):
    """Certificates of all images against one patch.

    Args:
        budget: the most mutants that it touches; None for originals of too many sizes.
    """

    certificates: Certificates
    patch: Sticker
    budget: int | None


class Session:
    """One run.

    Args:
        votes: as they were cast, or, with certificates, as they were certified.
        certificates: of the run; patches that they do not hold are certified on request.
        pictures: of the images, where available.
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
        self.cast = "soft" if votes.is_soft else "hard"
        self.views = self._views(votes)
        self._rows = {str(image): row for row, image in enumerate(votes.image_ids)}
        self._tables: OrderedDict[tuple[str, str], PatchTable] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def mask(self) -> Patch | None:
        """The patch that masking defenders mask for, if the run has one for all."""
        return None if self.certificates is None else self.certificates.classifier.mask

    @property
    def not_on_the_page(self) -> list[str]:
        """Certified patches that no sticker of the page has: shapes, several at once, shares of originals."""
        patches = [] if self.certificates is None else self.certificates.patches
        return [
            str(patch)
            for patch in patches
            if isinstance(patch, Several | Shape)
            or (isinstance(patch, Original) and isinstance(patch.patch, AreaShare))
        ]

    @cached_property
    def _stickers_on_originals(self) -> dict[str, Any] | None:
        patches = [] if self.certificates is None else self.certificates.patches
        return stickers_on_originals(self.votes, patches, _SIDES)

    @property
    def votes(self) -> Votes:
        return next(iter(self.views.values())).votes

    def _views(self, votes: Votes) -> dict[str, BallotView]:
        """Ballots as they were cast or certified; soft votes without certificates also as hard ones."""
        kinds = {self.cast: votes}
        if votes.is_soft and self.certificates is None:
            kinds["hard"] = votes.hard()
        views = {}
        for kind, ballots in kinds.items():
            terms = self.terms if ballots.is_soft else Terms(self.terms.ties, self.terms.epsilon)
            if self.certificates is not None:
                names = self.certificates.defenders
            else:
                partial = ballots.known is not None
                names = [
                    each.name
                    for each in chosen(
                        "all", ablation=ballots.ablation, soft=ballots.is_soft, partial=partial
                    )
                ]
            names = [name for name in names if not find(name).masks or self._can_mask(ballots)]
            views[kind] = BallotView(ballots, names, terms)
        return views

    def _meaning(self, kind: str) -> str:
        """Which classifier this view shows."""
        if self.certificates is not None:
            return f"Counted with {kind} ballots, as they were certified."
        if kind == self.cast:
            return f"Counted with {kind} ballots, as they were cast."
        return f"Counted with {kind} ballots, but they were cast {self.cast}: this is another classifier."

    @staticmethod
    def _can_mask(votes: Votes) -> bool:
        """Whether masking defenders are fast enough for patches of every size."""
        sizes = (1, max(1, min(votes.image_size) // 2))
        if votes.num_mutants > 4096:
            return False
        return all(masking_cost(votes, Square(size)) <= MAX_MASKING_COST for size in sizes)

    def view(self, kind: str | None) -> BallotView:
        if kind is None:
            return next(iter(self.views.values()))
        if kind not in self.views:
            raise CostcertError(f"these ballots are counted as {' or '.join(self.views)}, not as {kind!r}")
        return self.views[kind]

    def row(self, image: str) -> int:
        if image not in self._rows:
            raise UnknownImageError(f"no image has the id {image[:80]!r}")
        return self._rows[image]

    def summary(self) -> dict[str, Any]:
        """What the page needs before it requests an image."""
        votes = self.votes
        height, width = votes.image_size
        defenders = list(dict.fromkeys(name for view in self.views.values() for name in view.defenders))
        longest = min(votes.ablation.sides) if isinstance(votes.ablation, Masks) else min(height, width)
        sides = sorted({min(longest, max(1, round(part * min(height, width)))) for part in _SIDES})
        if self.certificates is not None:
            certified = [patch.side for patch in self.certificates.patches if isinstance(patch, Square)]
            sides = sorted(certified) or sides
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
            "mask": _mask(self.mask, votes.image_size),
            "masks": _masks(votes.ablation, votes.image_size),
            "ties": self.terms.ties,
            "views": {
                kind: {
                    "meaning": self._meaning(kind),
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
                    "meaning": find(name).meaning,
                    "colour": look.colour,
                    "width": 1.4 * look.width,
                    # matplotlib measures dashes in line widths, a browser in pixels.
                    "dash": []
                    if isinstance(look.dash, str)
                    else [2 * look.width * part for part in look.dash[1]],
                }
                for name, look in looks(defenders).items()
            },
            "words": {word: WORDS[word] for word in _WORDS},
            "sides": sides,
            "original": self._stickers_on_originals,
            "pictures": self.pictures is not None,
            "model_name": self.model_name,
        }

    @property
    def model_name(self) -> str | None:
        model: Mapping[str, Any] = self.votes.provenance.get("model") or {}
        return str(model["name"]) if model.get("name") else None

    def images(self) -> dict[str, Any]:
        votes = self.votes
        unread = [] if votes.unread is None else np.flatnonzero(votes.unread).tolist()
        return {"ids": votes.image_ids.tolist(), "truth": votes.truth.tolist(), "unread": unread}

    def ballots(self, image: str, kind: str | None = None) -> dict[str, Any]:
        """The votes of the mutants of one image."""
        view = self.view(kind)
        return {"image": image, **ballots_json(view.votes.take([self.row(image)]), view.terms)}

    def table(self, patch: str, kind: str | None = None) -> PatchTable:
        """Rank and min-k of all images against one patch, from the cache where possible."""
        view = self.view(kind)
        sticker = known_sticker(patch, view.votes.image_size)
        key = (kind or next(iter(self.views)), str(sticker))
        if key in self._tables:
            return self._tables[key]
        # One at a time: each uses all cores, and another thread may have computed this table meanwhile.
        with self._lock:
            if key in self._tables:
                return self._tables[key]
            certificates = self._stored(sticker) or self._certified(view, sticker)
            table = self._tables[key] = PatchTable(certificates, sticker, _budget(view.votes, sticker))
            numbers = 2 * len(certificates) * len(view.defenders)
            while len(self._tables) > max(_CACHED_PATCHES, _CACHED_NUMBERS // numbers):
                self._tables.popitem(last=False)
            return table

    def _stored(self, patch: Sticker) -> Certificates | None:
        stored = self.certificates
        return None if stored is None or patch not in stored.patches else stored.select(patches=[patch])

    def _certified(self, view: BallotView, sticker: Sticker) -> Certificates:
        for each in (sticker, self.mask):
            if each is sticker or isinstance(each, Original):
                checked_sticker(str(each), view.votes)
        return certify(
            view.votes,
            sticker,
            view.defenders,
            ties=view.terms.ties,
            epsilon=view.terms.epsilon,
            tau=view.terms.tau,
            mask=self.mask,
        )

    def certificates_of(self, patch: str, kind: str | None = None) -> dict[str, Any]:
        (certificates, sticker, budget), view = self.table(patch, kind), self.view(kind)
        return {
            "patch": str(sticker),
            "budget": budget,
            "defenders": {
                name: {
                    "rank": certificates.rank(name, sticker).tolist(),
                    "min_k": certificates.min_k(name, sticker).tolist(),
                }
                for name in view.defenders
            },
        }

    def accuracy(self, patch: str, kind: str | None = None) -> dict[str, Any]:
        """Clean and certified accuracy for every k on the curve."""
        (certificates, sticker, _), view = self.table(patch, kind), self.view(kind)
        ks = range(1, min(MAX_K, certificates.num_classes) + 1)
        accuracy = certificates.accuracy(ks)
        return {
            "patch": str(sticker),
            "images": len(certificates),
            "k": list(ks),
            "defenders": {name: _curve(accuracy[accuracy.defender == name]) for name in view.defenders},
        }

    def footprint(self, patch: str, original: ImageSize) -> dict[str, Any]:
        """What a patch on an original of this size can change at the input, from each place."""
        return footprint_json(self.votes, patch, original)

    def labelled(self, image: str, label: int | None, kind: str | None) -> LabelledImage:
        """One image of the run, with its true label or another one."""
        view = self.view(kind)
        row = self.row(image)
        if view.votes.unread is not None and view.votes.unread[row]:
            raise CostcertError(f"{image!r} could not be read when the votes were cast: it has no ballots")
        votes = view.votes.take([row])
        return LabelledImage(votes if label is None else with_label(votes, label), view.terms, self.mask)


def _budget(votes: Votes, sticker: Sticker) -> int | None:
    """The most mutants that a patch touches, over the sizes of the originals if it is on those."""
    try:
        checked_sticker(str(sticker), votes)
    except TooManySizesError:
        return None
    on_input = footprints_of(votes, sticker) if isinstance(sticker, Original) else [sticker]
    if len(on_input) > MAX_COUNTED_SIZES:
        return None
    found = [touched(votes.ablation, each, votes.image_size) for each in on_input]
    for sets in found:
        clear_large_cache(sets)
    return max((sets.delta for sets in found), default=0)


def _curve(accuracy: pd.DataFrame) -> dict[str, list[Any]]:
    """Shares for drawing, and the text that a table has for each: a browser rounds halves otherwise."""
    curve: dict[str, list[Any]] = {}
    for name in ("clean", "certified"):
        curve[name] = accuracy[name].tolist()
        curve[f"{name}_percent"] = [Cell(share).text for share in curve[name]]
    return curve


def _segments(ablation: Ablation, image_size: ImageSize) -> list[dict[str, list[list[int]]]]:
    """The segments that mutants keep along each axis, in the order of the ballots; none for masks."""
    if isinstance(ablation, Masks):
        return []
    return [
        {"rows": [list(each) for each in part.rows], "columns": [list(each) for each in part.columns]}
        for part in ablation.parts(image_size)
    ]


def _mask(patch: Patch | None, image_size: ImageSize) -> dict[str, Any] | None:
    """The patch that masking defenders mask for, and the size of a square or rectangle on the input."""
    if patch is None:
        return None
    at_input = patch.at(image_size)
    size = [at_input.height, at_input.width] if isinstance(at_input, Square | Rectangle) else None
    return {"patch": str(at_input), "size": size}


def _masks(ablation: Ablation, image_size: ImageSize) -> dict[str, Any] | None:
    """The masks that pairs of mutants hide, as (top, height) and (left, width), and the patch they cover."""
    if not isinstance(ablation, Masks):
        return None
    regions = [[list(mask.rows), list(mask.columns)] for mask in ablation.masks(image_size)]
    return {"regions": regions, "patch": list(ablation.sides)}
