"""Votes: table 1, what every mutant of every image voted for.

A ballot is hard (one label) or soft (at most `cap` units spread over some labels). A hard ballot is a soft
one with a cap of one unit, and everything to the right of this table treats it so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from costcert.errors import VotesError
from costcert.geometry.ablations import Ablation, parse_ablation, positions
from costcert.geometry.sizes import ImageSize, as_image_size, shown, whole

Labels = npt.NDArray[np.int32]

# The units a soft ballot may spread, unless said otherwise: probabilities in steps of 1/65536.
UNITS = 65536

# Sums of prices stay below 2**62 within these, so no kernel overflows.
LARGEST_CAP = 1 << 30
MOST_CLASSES = 1 << 24
MOST_UNITS = 1 << 60


class Votes:
    """Ballots of N images, with the truth and the geometry they were made with.

    Args:
        ballots: [N, B], the label each mutant votes for.
        truth: [N], the true label.
        num_classes: L; labels are 0 … L-1.
        ablation: what each mutant kept, a value or its spelling.
        image_size: (height, width) at the model's input.
        image_ids: [N] names that stay the same from run to run; counted by default.
        class_names: L names, for people.
        margins: [N, B], best minus second logit, for telling which ballots are numerically uncertain.
        unread: [N], images that could not be read. They stay in every denominator and count as wrong.
        asked: [N, B], mutants that were asked, where some were not; the ballots of the others are not looked
            at, and in every certificate they belong to the attacker.
        about: how the votes were made; goes into the manifest.
    """

    def __init__(
        self,
        ballots: npt.ArrayLike,
        truth: npt.ArrayLike,
        *,
        num_classes: int,
        ablation: Ablation | str,
        image_size: ImageSize | int | str,
        image_ids: Sequence[str] | npt.NDArray[np.str_] | None = None,
        class_names: Sequence[str] | None = None,
        margins: npt.ArrayLike | None = None,
        unread: npt.ArrayLike | None = None,
        asked: npt.ArrayLike | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self.num_classes = whole(num_classes, "the number of classes")
        if self.num_classes > MOST_CLASSES:
            raise VotesError(f"at most {MOST_CLASSES:,} classes are possible, got {self.num_classes:,}")
        self.ablation = parse_ablation(ablation) if isinstance(ablation, str) else ablation
        self.image_size = as_image_size(image_size)
        self.num_mutants = self.ablation.count(self.image_size)
        self.ballots = self._per_mutant(as_labels(ballots, "ballots", self.num_classes), "ballots")
        count = len(self.ballots)
        if count == 0:
            raise VotesError("the votes hold no image: at least one is needed")
        self.truth = as_labels(truth, "truth", self.num_classes)
        if self.truth.shape != (count,):
            raise VotesError(f"got ballots of {count} images, but truth of shape {self.truth.shape}")
        self.image_ids = _names(image_ids, count)
        self.class_names = None if class_names is None else tuple(str(name) for name in class_names)
        if self.class_names is not None and len(self.class_names) != self.num_classes:
            raise VotesError(f"got {len(self.class_names)} class names for {self.num_classes} classes")
        self.margins = None if margins is None else self._per_mutant(_margins(margins), "margins")
        if self.margins is not None and len(self.margins) != count:
            raise VotesError(f"got ballots of {count} images, but margins of {len(self.margins)}")
        self.unread = None if unread is None else _unread(unread, count)
        self.asked = None if asked is None else self._asked(asked)
        self.about: Mapping[str, Any] = MappingProxyType(dict(about or {}))
        self.labels: Labels | None = None
        self.units: npt.NDArray[np.int32] | None = None
        self.cap = 1

    @classmethod
    def soft(
        cls,
        labels: npt.ArrayLike,
        units: npt.ArrayLike,
        truth: npt.ArrayLike,
        *,
        num_classes: int,
        ablation: Ablation | str,
        image_size: ImageSize | int | str,
        cap: int = UNITS,
        ballots: npt.ArrayLike | None = None,
        **more: Any,
    ) -> Votes:
        """Soft ballots: mutant i of image n gives `units[n, i, s]` units to `labels[n, i, s]`.

        Args:
            cap: U, the most units that one mutant may give; what the attacker gets per touched mutant.
            ballots: [N, B], the hard ballots beside them; each mutant's best label by default.
            more: as for `Votes`.
        """
        spread = as_labels(labels, "labels", whole(num_classes, "the number of classes"))
        given = as_whole_numbers(units, "units")
        if spread.ndim != 3 or spread.shape != given.shape or spread.shape[2] == 0:
            raise VotesError(
                "soft ballots are labels and units of one shape [images, mutants, labels a mutant], "
                f"got {spread.shape} and {given.shape}"
            )
        cap = whole(cap, "the cap of a soft ballot")
        if cap > LARGEST_CAP:
            raise VotesError(f"the cap of a soft ballot is at most {LARGEST_CAP}, got {cap}")
        if given.size and given.min() < 0:
            raise VotesError(f"units are not negative, got {given.min()}")
        # One by one first: a sum of numbers that large could come round to a small one.
        most = int(given.max(initial=0))
        if most <= cap:
            most = int(given.sum(axis=2, dtype=np.int64).max(initial=0))
        if most > cap:
            raise VotesError(f"a mutant gives {most} units, but the cap is {cap}: quantise downwards")
        if ballots is None:
            ballots = np.take_along_axis(spread, given.argmax(axis=2)[..., None], axis=2)[..., 0]
        votes = cls(ballots, truth, num_classes=num_classes, ablation=ablation, image_size=image_size, **more)
        if votes.ballots.shape != spread.shape[:2]:
            raise VotesError(f"got ballots of shape {votes.ballots.shape} beside labels {spread.shape}")
        if votes.num_mutants * votes.num_classes * cap > MOST_UNITS:
            raise VotesError(
                f"{votes.num_mutants} mutants of {cap} units for {votes.num_classes} classes are more than "
                "can be added up exactly: use a smaller cap"
            )
        votes.labels = np.ascontiguousarray(spread)
        votes.units = np.ascontiguousarray(given, dtype=np.int32)
        votes.cap = cap
        return votes

    def __len__(self) -> int:
        return len(self.ballots)

    def __repr__(self) -> str:
        kind = f"soft ballots of {self.cap} units" if self.is_soft else "ballots"
        return (
            f"Votes({len(self)} images x {self.num_mutants} {kind}, {self.num_classes} classes, "
            f"{self.ablation} on {shown(self.image_size)})"
        )

    @property
    def is_soft(self) -> bool:
        return self.labels is not None

    def hard(self) -> Votes:
        """The same votes without their soft ballots."""
        return self._rebuilt(self.ballots, keep_soft=False)

    def tempered(self, power: float) -> Votes:
        """The same mutants with soft ballots of another temperature: every share is raised to `power`.

        A power above 1 sharpens: the temperature is divided by it. What a ballot gave to no label counts as
        one more label, so that a power of 1 changes nothing and a ballot never gives more than its cap.
        """
        if self.labels is None or self.units is None:
            raise VotesError("these votes are hard, and hard ballots have no temperature: vote softly")
        if not 0 < power < float("inf"):
            raise VotesError(f"a power is above 0, got {power}")
        share = self.units / self.cap
        rest = np.clip(1 - share.sum(axis=2, keepdims=True), 0, None)
        raised = share**power
        total = raised.sum(axis=2, keepdims=True) + rest**power
        # A share that is a whole number of units may come out a hair below it.
        units = np.floor(raised / np.where(total > 0, total, 1) * self.cap + 1e-6).astype(np.int32)
        part = self._rebuilt(self.ballots)
        part.units = units
        return part

    def take(self, images: Any) -> Votes:
        """The votes of some images, by slice, indices or mask."""
        return self._rebuilt(self.ballots[images], images=images)

    def select(self, ablation: Ablation | str) -> Votes:
        """The votes that `ablation` would have given, out of these: no mutant is asked again."""
        wanted = parse_ablation(ablation) if isinstance(ablation, str) else ablation
        chosen = positions(wanted, self.ablation, self.image_size)
        return self._rebuilt(self.ballots[:, chosen], mutants=chosen, ablation=wanted)

    def _rebuilt(
        self,
        ballots: Labels,
        *,
        images: Any = slice(None),
        mutants: Any = slice(None),
        ablation: Ablation | None = None,
        keep_soft: bool = True,
    ) -> Votes:
        """A view of part of these votes; what was checked once is not checked again."""
        part = object.__new__(Votes)
        part.__dict__.update(self.__dict__)
        part.ablation = ablation or self.ablation
        part.ballots = np.ascontiguousarray(ballots)
        part.num_mutants = ballots.shape[1]
        part.truth, part.image_ids = self.truth[images], self.image_ids[images]
        if len(part.ballots) == 0:
            raise VotesError("no image is left")
        if self.margins is not None:
            part.margins = self.margins[images][:, mutants]
        if self.unread is not None:
            part.unread = _unread(self.unread[images], len(part.ballots))
        if self.asked is not None:
            part.asked = _partly(self.asked[images][:, mutants])
        part.labels = part.units = None
        part.cap = 1
        if keep_soft and self.labels is not None and self.units is not None:
            part.labels = np.ascontiguousarray(self.labels[images][:, mutants])
            part.units = np.ascontiguousarray(self.units[images][:, mutants])
            part.cap = self.cap
        return part

    def whole(self, what: str) -> Votes:
        """These votes, if every mutant was asked: `what` needs them all."""
        if self.asked is not None:
            raise VotesError(
                f"{what} needs the ballots of all mutants, and some were not asked: vote in full"
            )
        return self

    def _asked(self, values: npt.ArrayLike) -> npt.NDArray[np.bool_] | None:
        mask = np.asarray(values)
        if mask.dtype != np.bool_ or mask.shape != self.ballots.shape:
            raise VotesError(
                f"asked is true or false for each of {self.ballots.shape} ballots, got {mask.dtype} of shape "
                f"{mask.shape}"
            )
        return _partly(mask)

    def _per_mutant(self, values: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
        if values.ndim != 2:
            raise VotesError(f"{name} have the shape [images, mutants], got {values.shape}")
        if values.shape[1] != self.num_mutants:
            raise VotesError(
                f"got {values.shape[1]} {name} per image, but {self.ablation} on {shown(self.image_size)} "
                f"makes {self.num_mutants}: pass the ablation these votes were made with"
            )
        return np.ascontiguousarray(values)


def _partly(asked: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_] | None:
    """Nothing to say where all were asked."""
    return None if asked.all() else np.ascontiguousarray(asked)


def as_whole_numbers(values: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    """An array of integers; floats are taken where every one of them is whole."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise VotesError(f"{name} must be a rectangular array of whole numbers") from None
    if array.dtype.kind in "iu":
        return array
    if array.dtype.kind != "f":
        raise VotesError(f"{name} must be whole numbers, got {array.dtype}")
    if not np.isfinite(array).all():
        raise VotesError(f"{name} must be whole numbers, got NaN or infinity")
    if (array != np.floor(array)).any():
        fraction = array[array != np.floor(array)].flat[0]
        raise VotesError(f"{name} must be whole numbers, got {fraction}")
    if array.size and np.abs(array).max() >= 2**53:
        raise VotesError(f"{name} must be exact whole numbers, got {np.abs(array).max():g}")
    return array.astype(np.int64)


def as_labels(values: npt.ArrayLike, name: str, num_classes: int) -> Labels:
    """Labels 0 … num_classes-1 as int32, or a sentence about the first that is none."""
    array = as_whole_numbers(values, name)
    if array.size and (array.min() < 0 or array.max() >= num_classes):
        wrong = (array < 0) | (array >= num_classes)
        at = ", ".join(str(i) for i in np.argwhere(wrong)[0])
        raise VotesError(
            f"{name}[{at}] is {array[wrong].flat[0]}, but {num_classes} classes are labelled "
            f"0 to {num_classes - 1}"
        )
    return array.astype(np.int32, copy=False)


def _margins(values: npt.ArrayLike) -> npt.NDArray[np.float32]:
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise VotesError(f"margins must be numbers, got {array.dtype}")
    with np.errstate(over="ignore"):
        # A margin beyond all bounds is as good as infinite.
        array = array.astype(np.float32)
    if np.isnan(array).any() or (array < 0).any():
        raise VotesError("margins are not negative and not NaN: best logit minus second best")
    return array


def _unread(values: npt.ArrayLike, count: int) -> npt.NDArray[np.bool_] | None:
    mask = np.asarray(values)
    if mask.dtype != np.bool_ or mask.shape != (count,):
        raise VotesError(f"unread is true or false for each of {count} images, got {mask.dtype} {mask.shape}")
    return mask if mask.any() else None


def _names(image_ids: Any, count: int) -> npt.NDArray[np.str_]:
    if image_ids is None:
        return np.arange(count).astype(np.str_)
    names = np.asarray(image_ids).astype(np.str_)
    if names.shape != (count,):
        raise VotesError(f"got ballots of {count} images, but image ids of shape {names.shape}")
    if len(np.unique(names)) != count:
        raise VotesError("image ids must differ from one another")
    return names
