"""Votes (table 1): the ballot of every mutant of every image, and which ballots are known.

A ballot is hard (one label) or soft (at most `cap` units spread over some labels). Defenders treat a hard
ballot as a soft one with a cap of one unit.

A ballot is known if its mutant was evaluated and another machine would get the same result. All other ballots
belong to the attacker. One mask, `known`, records this, and every copy of the votes carries it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from dataclasses import replace as changed
from os import PathLike
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from costcert.errors import VotesError
from costcert.geometry.ablations import Ablation, as_ablation, positions
from costcert.geometry.sizes import ImageSize, as_image_size, positive_int, several, shown
from costcert.votes.ballots import Ballots, ballots_of
from costcert.votes.defence import UNITS as UNITS
from costcert.votes.defence import Defence, Soft, is_positive
from costcert.votes.validation import (
    Labels,
    as_array,
    as_class_names,
    as_distances,
    as_image_ids,
    as_integers,
    as_labels,
    as_logits,
    as_mask,
    as_originals,
    as_soft_ballots,
    class_count,
    shortened,
    table_shape,
)

# Fields whose second axis is mutants, and all whose first axis is images.
_PER_MUTANT = ("ballots", "margins", "cuts", "known", "labels", "units")
_PER_IMAGE = (*_PER_MUTANT, "truth", "image_ids", "unread", "originals")
# The value of every entry of a mask that is None.
_MASK_DEFAULTS = {"unread": False, "known": True}
# Logits from which ballots are made at a time, several times as many numbers being in memory.
_LOGITS_AT_ONCE = 1 << 22
_MARGIN = "best logit minus second best"
_CUT = "the lowest logit of a soft ballot's labels minus the highest of the others"


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Votes:
    """Ballots of N images with their true labels and their geometry. Frozen: `replace` makes a changed copy.

    Args:
        ballots: [N, B], the label each mutant votes for.
        truth: [N], the true label.
        num_classes: L; labels are 0 … L-1.
        ablation: the pixels each mutant keeps, a value or its spelling.
        image_size: (height, width) at the model's input.
        image_ids: [N], names that stay the same from run to run; numbers by default.
        class_names: L names, for display.
        margins: [N, B], best minus second logit; a small margin makes a hard ballot numerically uncertain.
        cuts: [N, B], the lowest logit among the labels of a soft ballot minus the highest among the others;
            a small cut makes a soft ballot numerically uncertain.
        unread: [N], images that could not be read. They stay in every denominator and count as wrong.
        known: [N, B], ballots that were evaluated and are trusted, all by default. The values of the others
            are never used: in every certificate they belong to the attacker.
        originals: [N, 2], height and width of each picture before it was resized, 0 for unread ones; None if
            unknown. Patches such as `original:2` need it.
        tau: units by which any known soft ballot may be off, per label.
        hide: how hidden pixels were shown to the network; None if unknown.
        provenance: how the votes were made, for the manifest.
        recipe: how soft ballots are made; None for hard ballots. `Votes.soft` sets this and the next two.
        labels: [N, B, j], the labels of each soft ballot.
        units: [N, B, j], the units that each of them gets.
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
    originals: npt.NDArray[np.int64] | None
    tau: int
    hide: str | None
    provenance: Mapping[str, Any]
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
        originals: npt.ArrayLike | None = None,
        tau: int = 0,
        hide: str | None = None,
        provenance: Mapping[str, Any] | None = None,
        recipe: Soft | None = None,
        labels: npt.ArrayLike | None = None,
        units: npt.ArrayLike | None = None,
    ) -> None:
        classes = class_count(num_classes)
        kept = as_ablation(ablation)
        size = as_image_size(image_size)
        hard = as_labels(ballots, "ballots", classes)
        shape = table_shape(hard, kept, size)
        truths = as_labels(truth, "truth", classes)
        if truths.shape != shape[:1]:
            raise VotesError(f"got ballots of {shape[0]} images, but truth of shape {truths.shape}")
        names = as_class_names(class_names, classes)
        if recipe is not None:
            labels, units = as_soft_ballots(labels, units, recipe, classes, shape)
        elif labels is not None or units is not None:
            raise VotesError("labels and units need soft ballots: use Votes.soft")
        if not isinstance(provenance, Mapping | None):
            raise VotesError(f"provenance must be a dictionary, got {shortened(provenance)}")
        tau = positive_int(tau, "tau", at_least=0)
        if tau and recipe is None:
            raise VotesError("tau is in units of soft ballots, but these votes are hard: use epsilon")
        self._set(
            ballots=hard,
            truth=truths,
            num_classes=classes,
            ablation=kept,
            image_size=size,
            image_ids=as_image_ids(image_ids, shape[0]),
            class_names=names,
            margins=None if margins is None else as_distances(margins, "margins", shape, _MARGIN),
            cuts=None if cuts is None else as_distances(cuts, "cuts", shape, _CUT),
            unread=None if unread is None else as_mask(unread, "unread", shape[:1], "images"),
            known=None if known is None else as_mask(known, "known", shape, "ballots"),
            originals=None if originals is None else as_originals(originals, shape[0]),
            # A tau of `cap` already makes all labels equal; a larger one could overflow.
            tau=tau if recipe is None else min(tau, recipe.cap),
            hide=hide,
            provenance=dict(provenance or {}),
            recipe=recipe,
            labels=labels,
            units=units,
        )

    def _set(self, **content: Any) -> None:
        """Set all fields: arrays become read-only, and masks that hold only their default become None."""
        for field in fields(self):
            value = content[field.name]
            if isinstance(value, np.ndarray):
                default = _MASK_DEFAULTS.get(field.name)
                value = None if default is not None and (value == default).all() else read_only(value)
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
            cap: U, the most units one mutant may give, and what the attacker gets per touched mutant.
            temperature: of the softmax; None if unknown.
            ballots: [N, B], the hard ballots; the label with the most units of each mutant by default.
            more: as for `Votes`.
        """
        spread = as_labels(labels, "labels", positive_int(num_classes, "the number of classes"))
        given = as_integers(units, "units")
        if spread.ndim != 3 or spread.shape != given.shape or spread.shape[2] == 0:
            raise VotesError(
                "soft ballots need labels and units of one shape [images, mutants, labels per mutant], "
                f"got {spread.shape} and {given.shape}"
            )
        if ballots is None:
            ballots = np.take_along_axis(spread, given.argmax(axis=2)[..., None], axis=2)[..., 0]
        recipe = Soft(temperature, spread.shape[2], positive_int(cap, "the cap of a soft ballot"))
        return cls(ballots, truth, num_classes=num_classes, recipe=recipe, labels=spread, units=given, **more)

    @classmethod
    def from_logits(
        cls,
        logits: npt.ArrayLike,
        truth: npt.ArrayLike,
        *,
        ablation: Ablation | str,
        image_size: ImageSize | int | str,
        soft: Soft | None = None,
        **more: Any,
    ) -> Votes:
        """The votes of a network that was evaluated elsewhere: the same ballots that `vote` makes.

        Probabilities are logits after a logarithm: `np.log(np.clip(probabilities, 1e-30, 1))`.

        Args:
            logits: [N, B, L], a numpy array or a torch tensor: image n, mutant b (in the order of
                `ablation.regions(image_size)`), class y. All of them must be finite.
            truth: [N], the true label.
            ablation: the pixels each mutant kept, a value or its spelling, as `"columns:19"`.
            image_size: of the network's input, as `224` or `(height, width)`.
            soft: also make soft ballots, as `Soft(0.35, 4)`: softmax at temperature 0.35, its 4 best labels.
            more: as for `Votes`: `image_ids`, `class_names`, `hide`, …

        Example:
            >>> logits = np.random.default_rng(0).normal(size=(2, 8, 10))
            >>> cc.Votes.from_logits(logits, [3, 1], ablation="columns:4", image_size=8)
            Votes(2 images x 8 ballots, 10 classes, columns:4 on 8x8)
        """
        given = as_logits(logits)
        classes = given.shape[2]
        if soft is not None:
            if not isinstance(soft, Soft):
                raise VotesError(f"soft must be a value like Soft(0.35, 4), got {soft!r}")
            soft = changed(soft, best=min(soft.best, classes))
        step = max(1, _LOGITS_AT_ONCE // (given.shape[1] * classes))
        parts = [ballots_of(given[at : at + step], soft) for at in range(0, len(given), step)]
        made = Ballots._make(
            None if part[0] is None else np.concatenate(part) for part in zip(*parts, strict=True)
        )
        return cls(
            made.labels,
            truth,
            num_classes=classes,
            ablation=ablation,
            image_size=image_size,
            margins=made.margins,
            cuts=made.cuts,
            recipe=soft,
            labels=made.soft_labels,
            units=made.soft_units,
            **more,
        )

    @classmethod
    def joined(cls, parts: Sequence[Votes]) -> Votes:
        """The votes of the images of all parts, in order; the parts were made the same way."""
        parts = several(parts)
        if not parts:
            raise VotesError("joining votes needs at least one part, got none")
        for part in parts:
            check_votes(part)
        first: Votes = parts[0]
        if len(parts) == 1:
            return first
        content = {field.name: getattr(first, field.name) for field in fields(first)}
        for name in _PER_IMAGE:
            values = [getattr(part, name) for part in parts]
            if all(value is None for value in values):
                continue
            if name in _MASK_DEFAULTS:
                values = [
                    np.full(part.ballots.shape if name in _PER_MUTANT else len(part), _MASK_DEFAULTS[name])
                    if value is None
                    else value
                    for part, value in zip(parts, values, strict=True)
                ]
            if name == "originals" and not _originals_are_known(parts):
                content[name] = None
                continue
            if any(value is None for value in values):
                raise VotesError(
                    f"only some of these votes have {name}: join votes that were made the same way"
                )
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

    def _repr_html_(self) -> str:
        from costcert.notebook import votes_html

        return votes_html(self)

    @property
    def num_mutants(self) -> int:
        return int(self.ballots.shape[1])

    @property
    def is_soft(self) -> bool:
        return self.recipe is not None

    @property
    def cap(self) -> int:
        """U, the most units a mutant may give: 1 for hard ballots."""
        return 1 if self.recipe is None else self.recipe.cap

    @property
    def classifier(self) -> Defence:
        """The classifier that cast these ballots, without a defender."""
        return Defence(self.ablation, self.hide, self.recipe)

    def replace(self, **changes: Any) -> Votes:
        """A copy with these fields changed; everything is validated as in a new table."""
        content = {field.name: getattr(self, field.name) for field in fields(self)}
        return Votes(**{**content, **changes})

    def under(self, classifier: Defence) -> Votes:
        """The votes of this classifier, derived from these.

        It may use a subset of the mutants, or the hard ballots that are stored with soft ones. Anything else
        needs the network to be evaluated again.
        """
        if not isinstance(classifier, Defence):
            raise VotesError(f"the classifier must be a Defence, got {shortened(classifier)}")
        if classifier.hide != self.hide:
            raise VotesError(
                f"these votes were cast with hide={self.hide!r}, not hide={classifier.hide!r}: vote again"
            )
        votes = self if classifier.ablation == self.ablation else self.select(classifier.ablation)
        if classifier.soft == votes.recipe:
            return votes
        if classifier.soft is None:
            return votes.hard()
        cast = self.recipe or "hard ballots"
        raise VotesError(
            f"these votes are {cast}, which cannot be turned into {classifier.soft}: vote again with those "
            "soft ballots"
        )

    def hard(self) -> Votes:
        """The votes with hard ballots only."""
        return self._copied(recipe=None, labels=None, units=None, cuts=None, tau=0)

    def tempered(self, power: float) -> Votes:
        """An estimate of the soft ballots at another temperature: shares raised to `power`, then normalised.

        The temperature is divided by `power`, so a power above 1 sharpens. Units that a ballot gave to no
        label count as one more label, so that a power of 1 changes nothing and a ballot never exceeds its
        cap. Labels that were cut off or rounded to zero are missing, so these are not the ballots that the
        network would cast: use them to choose a temperature, they cannot be deployed.
        """
        if self.recipe is None or self.units is None:
            raise VotesError("these votes are hard, and hard ballots have no temperature: vote with --soft")
        if not is_positive(power):
            raise VotesError(f"the power must be above 0, got {power!r}")
        share = self.units / self.cap
        rest = np.clip(1 - share.sum(axis=2, keepdims=True), 0, None)
        raised = share**power
        total = raised.sum(axis=2, keepdims=True) + rest**power
        # Rounding can leave a share just below an integer number of units; the small term corrects that.
        units = np.floor(raised / np.where(total > 0, total, 1) * self.cap + 1e-6).astype(np.int32)
        # None marks an estimate: no network casts these ballots at any temperature.
        return self._copied(units=units, recipe=Soft(None, self.recipe.best, self.cap))

    def take(self, images: Any) -> Votes:
        """The votes of some images, by slice, indices or mask."""
        if not isinstance(images, slice):
            images = np.atleast_1d(as_array(images, "images"))
            images = images if images.dtype == np.bool_ else as_integers(images, "images")
        try:
            chosen = np.arange(len(self))[images]
        except (IndexError, TypeError):
            raise VotesError(
                f"images must be a slice, numbers below {len(self)}, or true and false for each, "
                f"got {shortened(images)}"
            ) from None
        content = {name: getattr(self, name) for name in _PER_IMAGE}
        part = {name: None if value is None else value[images] for name, value in content.items()}
        if chosen.ndim != 1 or len(chosen) == 0:
            raise VotesError("votes need at least one image, and none was selected")
        return self._copied(**part)

    def select(self, ablation: Ablation | str) -> Votes:
        """The votes of a subset of the mutants, those of `ablation`."""
        wanted = as_ablation(ablation)
        chosen = positions(wanted, self.ablation, self.image_size)
        content = {name: getattr(self, name) for name in _PER_MUTANT}
        part = {name: None if value is None else value[:, chosen] for name, value in content.items()}
        return self._copied(ablation=wanted, **part)

    def require_complete(self, what: str) -> Votes:
        """These votes if every ballot is known, otherwise an error: `what` names the user of all ballots."""
        if self.known is not None:
            raise VotesError(
                f"{what} needs the ballots of all mutants, but some were not evaluated or are not trusted: "
                "vote with all mutants"
            )
        return self

    def _copied(self, **changes: Any) -> Votes:
        """As `replace`, without validation: for changes derived from fields that are already valid."""
        content = {field.name: getattr(self, field.name) for field in fields(self)}
        copy = object.__new__(Votes)
        copy._set(**{**content, **changes})
        return copy


def _originals_are_known(parts: Sequence[Votes]) -> bool:
    """Whether all parts record the sizes of their originals, and the same way of preparing them.

    Shards of earlier versions do not, and the others are of use without it.
    """
    prepared = [(part.provenance.get("model") or {}).get("preprocessing") for part in parts]
    return all(part.originals is not None for part in parts) and prepared.count(prepared[0]) == len(parts)


def networks_of(provenance: Mapping[str, Any]) -> int:
    """How many networks evaluated each mutant: more than one where an ensemble voted."""
    model = provenance.get("model")
    recorded = model.get("networks", 1) if isinstance(model, Mapping) else 1
    return positive_int(recorded, "the number of networks")


def check_votes(votes: Any) -> None:
    """Raise if these are not votes in memory."""
    if not isinstance(votes, Votes):
        hint = ": read_votes reads a folder" if isinstance(votes, str | PathLike) else ""
        raise VotesError(f"votes must be a Votes table, got {shortened(votes)}{hint}")


def read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A contiguous, read-only view of the array."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
