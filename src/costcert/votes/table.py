"""Votes: table 1, what every mutant of every image voted for, and what is known about each ballot.

A ballot is hard (one label) or soft (at most `cap` units spread over some labels). A hard ballot is a soft
one with a cap of one unit, and everything to the right of this table treats it so.

A ballot is known (its mutant was evaluated, and another machine would say the same), or it is the attacker's.
That is one mask, `known`, and it goes wherever the ballots go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from costcert.errors import VotesError
from costcert.geometry.ablations import Ablation, parse_ablation, positions
from costcert.geometry.sizes import ImageSize, as_image_size, positive_int, shown
from costcert.votes.defence import UNITS as UNITS
from costcert.votes.defence import Defence, Soft

Labels = npt.NDArray[np.int32]

# Sums of prices stay below 2**62 within these, so no kernel overflows.
LARGEST_CAP = 1 << 30
MOST_CLASSES = 1 << 24
MOST_UNITS = 1 << 60

# What each image has of its own, and of that what each of its mutants has.
_PER_IMAGE = ("ballots", "truth", "image_ids", "margins", "cuts", "unread", "known", "labels", "units")
_PER_MUTANT = ("ballots", "margins", "cuts", "known", "labels", "units")
# What these are where they say nothing.
_UNSAID = {"unread": False, "known": True}


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Votes:
    """Ballots of N images, with the truth and the geometry they were made with. Frozen: see `replace`.

    Args:
        ballots: [N, B], the label each mutant votes for.
        truth: [N], the true label.
        num_classes: L; labels are 0 … L-1.
        ablation: what each mutant kept, a value or its spelling.
        image_size: (height, width) at the model's input.
        image_ids: [N] names that stay the same from run to run; counted by default.
        class_names: L names, for people.
        margins: [N, B], best minus second logit, for telling which hard ballots are numerically uncertain.
        cuts: [N, B], the last logit that a soft ballot names minus the first it does not, for the same.
        unread: [N], images that could not be read. They stay in every denominator and count as wrong.
        known: [N, B], ballots that were cast and are trusted, all by default. What the others hold is never
            looked at: in every certificate they belong to the attacker.
        tau: units by which any known soft ballot may be off, per label.
        hide: how the network was shown what a mutant does not keep, where that is known.
        provenance: how the votes were made; goes into the manifest.
    """

    ballots: Labels
    truth: Labels
    num_classes: int
    ablation: Ablation
    image_size: ImageSize
    image_ids: npt.NDArray[np.str_]
    class_names: tuple[str, ...] | None
    margins: npt.NDArray[np.float32] | None
    cuts: npt.NDArray[np.float32] | None
    unread: npt.NDArray[np.bool_] | None
    known: npt.NDArray[np.bool_] | None
    tau: int
    hide: str | None
    provenance: Mapping[str, Any]
    # Of soft ballots: how they are made, [N, B, j] labels and the units each gets.
    recipe: Soft | None
    labels: Labels | None
    units: npt.NDArray[np.int32] | None

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
        cuts: npt.ArrayLike | None = None,
        unread: npt.ArrayLike | None = None,
        known: npt.ArrayLike | None = None,
        tau: int = 0,
        hide: str | None = None,
        provenance: Mapping[str, Any] | None = None,
        recipe: Soft | None = None,
        labels: npt.ArrayLike | None = None,
        units: npt.ArrayLike | None = None,
    ) -> None:
        classes = positive_int(num_classes, "the number of classes")
        if classes > MOST_CLASSES:
            raise VotesError(f"at most {MOST_CLASSES:,} classes are possible, got {classes:,}")
        kept = parse_ablation(ablation) if isinstance(ablation, str) else ablation
        size = as_image_size(image_size)
        hard = as_labels(ballots, "ballots", classes)
        shape = _table_shape(hard, kept, size)
        truths = as_labels(truth, "truth", classes)
        if truths.shape != shape[:1]:
            raise VotesError(f"got ballots of {shape[0]} images, but truth of shape {truths.shape}")
        names = None if class_names is None else tuple(str(name) for name in class_names)
        if names is not None and len(names) != classes:
            raise VotesError(f"got {len(names)} class names for {classes} classes")
        if recipe is not None:
            labels, units = _soft_ballots(labels, units, recipe, classes, shape)
        elif labels is not None or units is not None:
            raise VotesError("labels and units are of soft ballots: use Votes.soft")
        off = positive_int(tau, "tau", at_least=0)
        if off and recipe is None:
            raise VotesError("tau is in units of soft ballots, but these votes are hard: use epsilon")
        self._set(
            ballots=hard,
            truth=truths,
            num_classes=classes,
            ablation=kept,
            image_size=size,
            image_ids=_names(image_ids, shape[0]),
            class_names=names,
            margins=_distances(margins, "margins", shape, "best logit minus second best"),
            cuts=_distances(cuts, "cuts", shape, "the last logit named minus the first that is not"),
            unread=_mask(unread, "unread", shape[:1], "images"),
            known=_mask(known, "known", shape, "ballots"),
            # A shift of a whole ballot already makes every label equal; more would only overflow.
            tau=off if recipe is None else min(off, recipe.cap),
            hide=hide,
            provenance=dict(provenance or {}),
            recipe=recipe,
            labels=labels,
            units=units,
        )

    def _set(self, **content: Any) -> None:
        """Keep this; masks that say nothing are left out, and nobody can write to the arrays."""
        for field in fields(self):
            value = content[field.name]
            if isinstance(value, np.ndarray):
                unsaid = _UNSAID.get(field.name)
                value = None if unsaid is not None and (value == unsaid).all() else read_only(value)
            elif field.name == "provenance":
                value = MappingProxyType(dict(value))
            object.__setattr__(self, field.name, value)

    @classmethod
    def soft(
        cls,
        labels: npt.ArrayLike,
        units: npt.ArrayLike,
        truth: npt.ArrayLike,
        *,
        num_classes: int,
        cap: int = UNITS,
        temperature: float | None = None,
        ballots: npt.ArrayLike | None = None,
        **more: Any,
    ) -> Votes:
        """Soft ballots: mutant i of image n gives `units[n, i, s]` units to `labels[n, i, s]`.

        Args:
            cap: U, the most units that one mutant may give; what the attacker gets per touched mutant.
            temperature: of the softmax they were made with, where that is known.
            ballots: [N, B], the hard ballots beside them; each mutant's best label by default.
            more: as for `Votes`.
        """
        spread = as_labels(labels, "labels", positive_int(num_classes, "the number of classes"))
        given = as_whole_numbers(units, "units")
        if spread.ndim != 3 or spread.shape != given.shape or spread.shape[2] == 0:
            raise VotesError(
                "soft ballots are labels and units of one shape [images, mutants, labels a mutant], "
                f"got {spread.shape} and {given.shape}"
            )
        if ballots is None:
            ballots = np.take_along_axis(spread, given.argmax(axis=2)[..., None], axis=2)[..., 0]
        recipe = Soft(temperature, spread.shape[2], positive_int(cap, "the cap of a soft ballot"))
        return cls(ballots, truth, num_classes=num_classes, recipe=recipe, labels=spread, units=given, **more)

    @classmethod
    def joined(cls, parts: Sequence[Votes]) -> Votes:
        """Votes of the images of all parts, in order, that were made alike."""
        first = parts[0]
        if len(parts) == 1:
            return first
        content = {field.name: getattr(first, field.name) for field in fields(first)}
        for name in _PER_IMAGE:
            values = [getattr(part, name) for part in parts]
            if all(value is None for value in values):
                continue
            if name in _UNSAID:
                values = [
                    np.full(part.ballots.shape if name in _PER_MUTANT else len(part), _UNSAID[name])
                    if value is None
                    else value
                    for part, value in zip(parts, values, strict=True)
                ]
            if any(value is None for value in values):
                raise VotesError(f"some of these votes have {name}, some have none: they were not made alike")
            content[name] = np.concatenate(values)
        return cls(**content)

    def __len__(self) -> int:
        return len(self.ballots)

    def __repr__(self) -> str:
        kind = f"soft ballots of {self.cap} units" if self.is_soft else "ballots"
        return (
            f"Votes({len(self)} images x {self.num_mutants} {kind}, {self.num_classes} classes, "
            f"{self.ablation} on {shown(self.image_size)})"
        )

    @property
    def num_mutants(self) -> int:
        return int(self.ballots.shape[1])

    @property
    def is_soft(self) -> bool:
        return self.recipe is not None

    @property
    def cap(self) -> int:
        """U, the most units a mutant gives: one where ballots are hard."""
        return 1 if self.recipe is None else self.recipe.cap

    @property
    def classifier(self) -> Defence:
        """What these are the ballots of; nobody has ranked them yet."""
        return Defence(self.ablation, self.hide, self.recipe)

    def replace(self, **changes: Any) -> Votes:
        """A copy in which these fields are others; everything is checked as in a new table."""
        content = {field.name: getattr(self, field.name) for field in fields(self)}
        return Votes(**{**content, **changes})

    def under(self, classifier: Defence) -> Votes:
        """The ballots that this classifier counts, of those that were cast.

        A smaller set of mutants was fixed before any image was seen, and a hard ballot is cast beside every
        soft one. Nothing else can be had without evaluating the network again.
        """
        if classifier.hide != self.hide:
            raise VotesError(
                f"these mutants were shown by {self.hide!r}, not by {classifier.hide!r}: vote again"
            )
        votes = self if classifier.ablation == self.ablation else self.select(classifier.ablation)
        if classifier.soft == votes.recipe:
            return votes
        if classifier.soft is None:
            return votes.hard()
        cast = self.recipe or "hard ballots"
        raise VotesError(
            f"these votes are {cast}, and nothing makes {classifier.soft} of them: vote once more, softly at "
            "that temperature and with as many labels"
        )

    def hard(self) -> Votes:
        """The same votes without their soft ballots."""
        return self._copied(recipe=None, labels=None, units=None, cuts=None, tau=0)

    def tempered(self, power: float) -> Votes:
        """An estimate of the same mutants with soft ballots of another temperature: shares to `power`.

        A power above 1 sharpens: the temperature is divided by it. What a ballot gave to no label counts as
        one more label, so that a power of 1 changes nothing and a ballot never gives more than its cap.
        Labels that were cut off or rounded away are missing, so these are not the ballots that the network
        would cast: good for choosing a temperature, but nothing can deploy them.
        """
        if self.recipe is None or self.units is None:
            raise VotesError("these votes are hard, and hard ballots have no temperature: vote softly")
        if not 0 < power < float("inf"):
            raise VotesError(f"a power is above 0, got {power}")
        share = self.units / self.cap
        rest = np.clip(1 - share.sum(axis=2, keepdims=True), 0, None)
        raised = share**power
        total = raised.sum(axis=2, keepdims=True) + rest**power
        # A share that is a whole number of units may come out a hair below it.
        units = np.floor(raised / np.where(total > 0, total, 1) * self.cap + 1e-6).astype(np.int32)
        # Ballots of no temperature that could be named.
        return self._copied(units=units, recipe=Soft(None, self.recipe.best, self.cap))

    def take(self, images: Any) -> Votes:
        """The votes of some images, by slice, indices or mask."""
        mine = {name: getattr(self, name) for name in _PER_IMAGE}
        part = {name: None if value is None else value[images] for name, value in mine.items()}
        if len(self.truth[images]) == 0:
            raise VotesError("no image is left")
        return self._copied(**part)

    def select(self, ablation: Ablation | str) -> Votes:
        """The votes that `ablation` would have given, out of these: no mutant is evaluated again."""
        wanted = parse_ablation(ablation) if isinstance(ablation, str) else ablation
        chosen = positions(wanted, self.ablation, self.image_size)
        mine = {name: getattr(self, name) for name in _PER_MUTANT}
        part = {name: None if value is None else value[:, chosen] for name, value in mine.items()}
        return self._copied(ablation=wanted, **part)

    def require_complete(self, what: str) -> Votes:
        """These votes, if every ballot is known: `what` needs them all."""
        if self.known is not None:
            raise VotesError(
                f"{what} needs the ballots of all mutants, and some were not evaluated or are not trusted: "
                "vote in full"
            )
        return self

    def _copied(self, **changes: Any) -> Votes:
        """As `replace`, where what changes is taken from what was checked before."""
        content = {field.name: getattr(self, field.name) for field in fields(self)}
        copy = object.__new__(Votes)
        copy._set(**{**content, **changes})
        return copy


def read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A view in one piece that nobody can write to."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def _table_shape(ballots: Labels, ablation: Ablation, image_size: ImageSize) -> tuple[int, int]:
    """(N, B), if there is an image and each has a ballot of every mutant."""
    mutants = ablation.count(image_size)
    if ballots.ndim != 2:
        raise VotesError(f"ballots have the shape [images, mutants], got {ballots.shape}")
    if ballots.shape[1] != mutants:
        raise VotesError(
            f"got {ballots.shape[1]} ballots per image, but {ablation} on {shown(image_size)} "
            f"makes {mutants}: pass the ablation these votes were made with"
        )
    if len(ballots) == 0:
        raise VotesError("the votes hold no image: at least one is needed")
    return len(ballots), mutants


def _soft_ballots(
    labels: Any, units: Any, recipe: Soft, num_classes: int, shape: tuple[int, int]
) -> tuple[Labels, npt.NDArray[np.int32]]:
    """Labels and units of every mutant, none of which gives more than the cap."""
    spread, given = as_labels(labels, "labels", num_classes), as_whole_numbers(units, "units")
    expected = (*shape, recipe.best)
    if spread.shape != expected or given.shape != expected:
        raise VotesError(
            f"soft ballots have labels and units of shape {expected}, got {spread.shape} and {given.shape}"
        )
    if recipe.cap > LARGEST_CAP:
        raise VotesError(f"the cap of a soft ballot is at most {LARGEST_CAP}, got {recipe.cap}")
    if given.min() < 0:
        raise VotesError(f"units are not negative, got {given.min()}")
    # One by one first: a sum of numbers that large could come round to a small one.
    most = int(given.max())
    if most <= recipe.cap:
        most = int(given.sum(axis=2, dtype=np.int64).max())
    if most > recipe.cap:
        raise VotesError(f"a mutant gives {most} units, but the cap is {recipe.cap}: quantise downwards")
    if shape[1] * num_classes * recipe.cap > MOST_UNITS:
        raise VotesError(
            f"{shape[1]} mutants of {recipe.cap} units for {num_classes} classes are more than "
            "can be added up exactly: use a smaller cap"
        )
    return spread, given.astype(np.int32)


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
    return array.astype(np.int32)


def _distances(
    values: npt.ArrayLike | None, name: str, shape: tuple[int, int], meaning: str
) -> npt.NDArray[np.float32] | None:
    if values is None:
        return None
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise VotesError(f"{name} must be numbers, got {array.dtype}")
    if array.shape != shape:
        raise VotesError(f"got {name} of shape {array.shape} for ballots of shape {shape}")
    with np.errstate(over="ignore"):
        # A distance beyond all bounds is as good as infinite.
        array = array.astype(np.float32)
    if np.isnan(array).any() or (array < 0).any():
        raise VotesError(f"{name} are not negative and not NaN: {meaning}")
    return array


def _mask(
    values: npt.ArrayLike | None, name: str, shape: tuple[int, ...], of: str
) -> npt.NDArray[np.bool_] | None:
    if values is None:
        return None
    mask = np.array(values)
    if mask.dtype != np.bool_ or mask.shape != shape:
        raise VotesError(
            f"{name} is true or false for each of {' x '.join(map(str, shape))} {of}, got {mask.dtype} of "
            f"shape {mask.shape}"
        )
    return mask


def _names(image_ids: Any, count: int) -> npt.NDArray[np.str_]:
    if image_ids is None:
        return np.arange(count).astype(np.str_)
    names = np.asarray(image_ids).astype(np.str_)
    if names.shape != (count,):
        raise VotesError(f"got ballots of {count} images, but image ids of shape {names.shape}")
    if len(np.unique(names)) != count:
        raise VotesError("image ids must differ from one another")
    return names
