"""Settings of a vote, what they certify on validation images, and a local search for the best of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from costcert.certification.certify import masked_for, with_unread_last
from costcert.defenders import find
from costcert.errors import CostcertError
from costcert.geometry.ablations import Ablation, Blocks, Bools, Columns, Masks, Pooled, Rows
from costcert.geometry.patches import OnePatch, Several
from costcert.geometry.sizes import ImageSize
from costcert.geometry.touch import touched
from costcert.votes.originals import touched_by
from costcert.votes.table import Votes, networks_of

# Temperatures tried, relative to that of the ballots.
TEMPERATURE_FACTORS = (1.0, 0.85, 0.7, 0.6, 0.5, 0.42, 0.35, 0.3, 0.25, 0.2, 0.15, 0.1)
STRIDES = (1, 2, 3, 4)
# Images on which settings are compared, and fewer where patches have many positions,
# as with pooled columns and rows.
_SEARCH_IMAGES = 2500
_SEARCH_POSITIONS = 1 << 20
_FEWEST_IMAGES = 500
# Many settings are compared on some of these images first, and only the best third on more.
_STAGES = (1 / 8, 1 / 3)
_FEWEST_AT_FIRST = 150
_KEPT = 1 / 3

Shares = npt.NDArray[np.float64]


class Value(Protocol):
    """What a setting is worth on the first so many images, by default on all."""

    def __call__(self, setting: Setting, first: int | None = None) -> float: ...


@dataclass(frozen=True)
class Setting:
    """One way to vote, and to rank labels by the votes.

    Args:
        ablation: which mutants vote.
        temperature: of soft ballots; None for hard ones.
        defender: the defender that ranks the labels.
        mask: the patch that a masking defender masks for; None if it is the patch it is certified against.
    """

    ablation: Ablation
    temperature: float | None
    defender: str = "costcert"
    mask: OnePatch | Several | None = None

    def __str__(self) -> str:
        ballots = "hard" if self.temperature is None else f"soft T={self.temperature:.3g}"
        masking = "" if self.mask is None else f" masking {self.mask}"
        return f"{self.ablation}, {ballots}, {self.defender}{masking}"


@dataclass(frozen=True)
class Goal:
    """The objective: the mean certified accuracy over these P patches and these K values of k."""

    patches: tuple[OnePatch | Several, ...]
    ks: tuple[int, ...]

    def certified(self, votes: Votes, setting: Setting) -> Bools:
        """[N, P, K], whether each image is certified for this setting's defender and mask.

        The votes are those of the setting. A patch that the defender refuses, or that does not fit into the
        mask, is not certified. Without a mask, a masking defender masks for each patch when it comes.
        """
        hits = np.zeros((len(votes), len(self.patches), len(self.ks)), dtype=np.bool_)
        heard = [patch for patch in self.patches if refusal(setting.defender, votes, patch) is None]
        if setting.mask is not None:
            within = self.within(votes.ablation, votes.image_size)[self.patches.index(setting.mask)]
            heard = [patch for patch in heard if within[self.patches.index(patch)]]
        if not heard:
            return hits
        # Not `certify`: it also finds ranks, which take a masking defender as long again.
        defender, classifier = find(setting.defender), replace(votes.classifier, mask=setting.mask)
        windows = [
            masked_for(votes, classifier, patch) if defender.masks else touched_by(votes, patch)
            for patch in heard
        ]
        for patch, min_k in zip(heard, defender.min_k(votes, windows), strict=True):
            certified = with_unread_last(min_k, votes)[:, None] <= np.asarray(self.ks)
            hits[:, self.patches.index(patch)] = certified
        return hits

    def within(self, ablation: Ablation, image_size: ImageSize) -> Bools:
        """[P, P], whether a classifier that masks for the first patch says anything about the second."""
        sets = [touched(ablation, patch, image_size) for patch in self.patches]
        return np.array([[own is mask or own.lies_within(mask) for own in sets] for mask in sets])


def refusal(defender: str, votes: Votes, patch: OnePatch | Several) -> str | None:
    """Why this defender has nothing to say about such votes and such a patch."""
    try:
        find(defender).refuse(votes.ablation, patch, votes.image_size)
    except CostcertError as error:
        return str(error)
    return None


class VoteEstimates:
    """Votes, and estimates of the votes under other settings, for choosing among them.

    Args:
        temperature: of the soft ballots, if the votes do not record it.
    """

    def __init__(self, votes: Votes, temperature: float | None = None) -> None:
        known = None if votes.recipe is None else votes.recipe.temperature or temperature
        if votes.is_soft and known is None:
            raise CostcertError("these votes do not record the temperature of their soft ballots: pass it")
        self.votes = votes
        self.temperature = known

    def under(self, setting: Setting) -> Votes:
        """The votes under another setting, estimated if its temperature is another."""
        votes = self.votes
        if setting.ablation != votes.ablation:
            votes = votes.select(setting.ablation)
        if setting.temperature is None:
            return votes.hard()
        if self.temperature is None:
            raise CostcertError(f"{setting} needs soft ballots, but these votes are hard: vote with --soft")
        if setting.temperature == self.temperature:
            return votes
        return votes.tempered(self.temperature / setting.temperature)

    def passes(self, setting: Setting) -> int:
        """Evaluations of networks per image."""
        return setting.ablation.count(self.votes.image_size) * networks_of(self.votes.provenance)

    def take(self, images: Any) -> VoteEstimates:
        return VoteEstimates(self.votes.take(images), self.temperature)

    @property
    def everything(self) -> Setting:
        """All mutants with hard ballots, as in the paper."""
        return Setting(self.votes.ablation, None)

    @cached_property
    def temperatures(self) -> list[float | None]:
        return (
            [None]
            if self.temperature is None
            else [None, *(factor * self.temperature for factor in TEMPERATURE_FACTORS)]
        )


class Trials:
    """Which images each setting certifies, of the images on which settings are compared.

    The searches of all folds share it, because they come by the same settings.
    """

    def __init__(self, ballots: VoteEstimates, goal: Goal) -> None:
        count = len(ballots.votes)
        size, ablation = ballots.votes.image_size, ballots.votes.ablation
        positions = sum(len(touched(ablation, patch, size)) for patch in goal.patches)
        most = min(_SEARCH_IMAGES, max(_FEWEST_IMAGES, _SEARCH_POSITIONS // positions))
        some = np.unique(np.linspace(0, count - 1, min(count, most)).astype(int))
        # Their numbers among all images, in an order in which the first ones are a sample of all.
        self.images = np.random.default_rng(0).permutation(some)
        # How many of them each stage of a comparison looks at.
        firsts = [int(share * len(some)) for share in _STAGES]
        self.stages = [*(first for first in firsts if first >= _FEWEST_AT_FIRST), len(some)]
        self.ballots = ballots.take(self.images)
        self.goal = goal
        self._hits: dict[Setting, Bools] = {}

    def hits(self, setting: Setting, first: int) -> Bools:
        """[first, P, K], those of the first images."""
        known = self._hits.get(setting)
        done = 0 if known is None else len(known)
        if done < first:
            more = self.goal.certified(self.ballots.take(np.arange(done, first)).under(setting), setting)
            known = self._hits[setting] = more if known is None else np.concatenate([known, more])
        assert known is not None
        return known[:first]


class Search:
    """Local search over settings, compared on some of the images.

    Settings are searched without a mask: what a classifier that masks for one patch certifies follows from
    what those that mask for each patch do.

    Args:
        held_out: numbers of images that the search must not see.
    """

    def __init__(
        self, trials: Trials, most_passes: int | None, held_out: npt.NDArray[np.int64] | None = None
    ) -> None:
        self._trials = trials
        self._seen = ~np.isin(trials.images, [] if held_out is None else held_out)
        self._ballots, self._goal = trials.ballots, trials.goal
        self._most_passes = most_passes
        # Of the settings that were compared on all images.
        self._shares: dict[Setting, Shares] = {}
        self._within: dict[Ablation, Bools] = {}

    def steps(self, defender: str) -> Iterator[tuple[str, Setting]]:
        """All mutants hard; all mutants at the best temperature; and the best mutants at the best one."""
        everyone = replace(self._ballots.everything, defender=defender)
        yield "all, hard", self.masked(everyone)
        reads_soft = find(defender).reads_soft and self._ballots.temperature is not None
        soft = self._best(self._temperatures(everyone), self.quality) if reads_soft else everyone
        if reads_soft:
            yield "all, soft", self.masked(soft)
        if not isinstance(everyone.ablation, Masks):
            yield "chosen ones", self.masked(self.climb(soft))

    def shares(self, setting: Setting, first: int | None = None) -> Shares:
        """[P, K], the certified accuracy for each patch and k, masked for that patch.

        Args:
            first: how many of the images to look at; by default all.
        """
        if setting in self._shares:
            return self._shares[setting]
        count = self._trials.stages[-1] if first is None else first
        shares: Shares = self._trials.hits(setting, count)[self._seen[:count]].mean(axis=0)
        if count == self._trials.stages[-1]:
            self._shares[setting] = shares
        return shares

    def quality(self, setting: Setting, first: int | None = None) -> float:
        """The goal that the setting reaches with the best mask, whatever its passes."""
        return max(self._by_mask(setting, first))

    def score(self, setting: Setting, first: int | None = None) -> float:
        """The same; too many passes score below every setting that fits, and the more passes the lower."""
        return self.quality(setting, first) if self._fits(setting) else -float(self._ballots.passes(setting))

    def _best(self, settings: Sequence[Setting], value: Value) -> Setting:
        """The best of these settings, and of equal ones the first, which is never left out before the end."""
        current, *others = settings
        for first in self._trials.stages[:-1]:
            others.sort(key=lambda setting: value(setting, first), reverse=True)
            others = others[: math.ceil(_KEPT * len(others))]
        return max([current, *others], key=value)

    def masked(self, setting: Setting) -> Setting:
        """The setting, with the best mask if its defender masks."""
        if not find(setting.defender).masks:
            return setting
        return replace(setting, mask=self._goal.patches[int(np.argmax(self._by_mask(setting)))])

    def _by_mask(self, setting: Setting, first: int | None = None) -> list[float]:
        """The goal for each patch that a masking defender may mask for; one number for other defenders."""
        shares = self.shares(setting, first)
        if not find(setting.defender).masks:
            return [float(shares.mean())]
        if setting.ablation not in self._within:
            size = self._ballots.votes.image_size
            self._within[setting.ablation] = self._goal.within(setting.ablation, size)
        # Against every patch that fits into the mask the certificates are those against the mask.
        return [float(score) for score in self._within[setting.ablation].mean(axis=1) * shares.mean(axis=1)]

    def best_for(self, defender: str, patch: int, k: int) -> Setting | None:
        """Of all settings tried with this defender, the best for one patch and one k, by their indices."""
        tried = [each for each in self._shares if each.defender == defender and self._fits(each)]
        if not tried:
            return None
        best = max(tried, key=lambda setting: self._shares[setting][patch, k])
        return replace(best, mask=self._goal.patches[patch]) if find(defender).masks else best

    def climb(self, setting: Setting) -> Setting:
        """The local optimum reached from here by changing spans, strides, families or temperature.

        Passes are limited last: the first step to fit would be the largest stride, from which no small step
        leads to a narrow span. So the optimum without a limit sheds passes where that costs least.
        """
        best = self._climb(setting, self.quality)
        while not self._fits(best):
            passes = self._ballots.passes(best)
            fewer = [each for each in self._near(best, 1) if self._ballots.passes(each) < passes]
            if not fewer:
                break
            best = self._best(fewer, self.quality)
        return self._climb(best, self.score)

    def _climb(self, setting: Setting, value: Value) -> Setting:
        size = self._ballots.votes.image_size
        step = max(1, max(_reach(family, size) for family in _families(setting.ablation)) // 8)
        while True:
            better = self._best([setting, *self._near(setting, step)], value)
            better = self._best([better, *self._temperatures(better)], value)
            if better == setting and step == 1:
                return setting
            step = step if better != setting else max(1, step // 2)
            setting = better

    def _near(self, setting: Setting, step: int) -> list[Setting]:
        given, size = self._ballots.votes.ablation, self._ballots.votes.image_size
        return [replace(setting, ablation=each) for each in neighbours(setting.ablation, given, size, step)]

    def _temperatures(self, setting: Setting) -> list[Setting]:
        soft = find(setting.defender).reads_soft
        wanted: Sequence[float | None] = self._ballots.temperatures if soft else [None]
        return [replace(setting, temperature=temperature) for temperature in wanted]

    def _fits(self, setting: Setting) -> bool:
        return self._most_passes is None or self._ballots.passes(setting) <= self._most_passes


Family = Columns | Rows | Blocks


def neighbours(ablation: Ablation, given: Ablation, image_size: ImageSize, step: int) -> Iterator[Ablation]:
    """Subsets of the mutants of `given` that differ from this one in span or stride, or lack one family.

    Of pooled families one changes at a time, or all change alike, or one is left out.
    """
    families = _families(ablation)
    # Which family of `given` each one is a part of; two that are of one kind keep their order.
    origins = _origins(families, _families(given))
    changes = [
        dict(_changed(family, origin, image_size, step))
        for family, origin in zip(families, origins, strict=True)
    ]
    for at, of_one in enumerate(changes):
        for changed in of_one.values():
            yield _pooled([*families[:at], changed, *families[at + 1 :]])
    if len(families) == 1:
        return
    for change in changes[0]:
        if all(change in of_one for of_one in changes):
            yield _pooled([of_one[change] for of_one in changes])
    for at in range(len(families)):
        yield _pooled([*families[:at], *families[at + 1 :]])


def _families(ablation: Ablation) -> tuple[Family, ...]:
    if isinstance(ablation, Pooled):
        return ablation.families
    return () if isinstance(ablation, Masks) else (ablation,)


def _pooled(families: Sequence[Family]) -> Ablation:
    return families[0] if len(families) == 1 else Pooled(*families)


def _origins(families: Sequence[Family], given: Sequence[Family]) -> list[Family]:
    """The family of `given` that each of these families is a part of."""
    left = iter(given)
    return [
        next(origin for origin in left if type(origin) is type(family) and origin.width == family.width)
        for family in families
    ]


def _changed(
    family: Family, given: Family, image_size: ImageSize, step: int
) -> Iterator[tuple[tuple[str, int, int], Family]]:
    """The family with one or both ends of its span moved by `step` positions, or with another stride.

    Each comes with its name, which is the same for the same change of another family.
    """
    if not isinstance(family, Blocks) and not isinstance(given, Blocks):
        possible, own = _positions(given, image_size), _positions(family, image_size)
        # A span may start at any evaluated mutant, and have any length that the stride allows.
        first, last = possible.index(own[0]), possible.index(own[-1])
        for move in (-step, 0, step):
            for stretch in (-step, 0, step):
                begin, end = first + move, last + stretch
                if 0 <= begin <= end < len(possible) and (move or stretch):
                    yield ("span", move, stretch), replace(family, span=(possible[begin], possible[end]))
    for factor in STRIDES:
        if factor * given.stride != family.stride:
            yield ("stride", factor, 0), replace(family, stride=factor * given.stride)


def _reach(family: Family, image_size: ImageSize) -> int:
    """The number of starting positions of a family; 1 for blocks, whose span is not tuned."""
    return 1 if isinstance(family, Blocks) else len(_positions(family, image_size))


def _positions(family: Columns | Rows, image_size: ImageSize) -> list[int]:
    return [
        (region.columns if isinstance(family, Columns) else region.rows).start
        for region in family.regions(image_size)
    ]
