"""Tuning: which mutants should vote, and at what temperature, for the highest certified accuracy.

Any rule that is fixed before an image is seen is sound: the span of starting positions, their stride, and the
temperature of soft ballots. All are chosen from the ballots of validation images, without evaluating the
model again, and measured by cross-validation: a setting is chosen on four fifths of the images and measured
on the remaining fifth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from costcert.certification.certify import AnyPatch, certify, concrete_patches
from costcert.errors import CostcertError, StoreError
from costcert.geometry.ablations import Ablation, Blocks, Columns, Rows, parse_ablation
from costcert.geometry.patches import OnePatch, Several
from costcert.geometry.sizes import positive_ints
from costcert.store.files import read_json, write_json
from costcert.store.locations import Location
from costcert.votes.defence import Soft
from costcert.votes.table import Votes, check_votes

FORMAT, VERSION = "costcert tuning", 1
# Name of the file with the tuned setting; `vote` looks for it in the folder of a model.
TUNED = "tuned.json"

# Temperatures tried, relative to that of the ballots.
TEMPERATURE_FACTORS = (1.0, 0.85, 0.7, 0.6, 0.5, 0.42, 0.35, 0.3, 0.25, 0.2, 0.15, 0.1)
STRIDES = (1, 2, 3, 4)
# Images on which two settings are compared.
_SEARCH_IMAGES = 2000
FOLDS = 5


@dataclass(frozen=True)
class Setting:
    """One way to vote.

    Args:
        ablation: which mutants vote.
        temperature: of soft ballots; None for hard ones.
    """

    ablation: Ablation
    temperature: float | None

    def __str__(self) -> str:
        return f"{self.ablation}, {'hard' if self.temperature is None else f'soft T={self.temperature:.3g}'}"


@dataclass(frozen=True)
class Goal:
    """The objective: the mean certified accuracy over these patches and these k."""

    patches: tuple[OnePatch | Several, ...]
    ks: tuple[int, ...]

    def scores(self, votes: Votes) -> npt.NDArray[np.float64]:
        """[N], the share of pairs (patch, k) for which each image is certified."""
        certificates = certify(votes, self.patches, "costcert")
        hits = [certificates.min_k("costcert", patch) <= k for patch in self.patches for k in self.ks]
        return np.asarray(np.mean(hits, axis=0))


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


@dataclass(frozen=True)
class Step:
    """One step of the search: a setting, and its certified accuracy.

    Args:
        passes: evaluations of the network per image.
        reached: on the images it was chosen on.
        cross_validated: on images it was not chosen on.
    """

    name: str
    setting: Setting
    passes: int
    reached: float
    cross_validated: float


@dataclass(frozen=True)
class Tuning:
    """The result of `tune`: the chosen setting, and the steps that led to it."""

    setting: Setting
    best: int | None
    goal: Goal
    steps: Sequence[Step]
    images: int

    def to_json(self) -> dict[str, Any]:
        soft = self.setting.temperature
        return {
            "format": FORMAT,
            "version": VERSION,
            "ablation": str(self.setting.ablation),
            "soft": None if soft is None else {"temperature": soft, "best": self.best},
            "goal": {"patches": [str(patch) for patch in self.goal.patches], "k": list(self.goal.ks)},
            "images": self.images,
            "steps": [
                {
                    "name": step.name,
                    "ablation": str(step.setting.ablation),
                    "temperature": step.setting.temperature,
                    "passes": step.passes,
                    "reached": step.reached,
                    "cross_validated": step.cross_validated,
                }
                for step in self.steps
            ],
        }

    def write(self, path: Location) -> None:
        write_json(path, self.to_json())


def read_tuned(path: Location) -> tuple[Ablation, Soft | None]:
    """The ablation and the soft ballots chosen by `tune`, read from its file."""
    found = read_json(path)
    if not isinstance(found, dict) or found.get("format") != FORMAT or found.get("version") != VERSION:
        raise StoreError(
            f"{path} is not a file of `costcert tune`, or is of another version: run `costcert tune` again"
        )
    try:
        soft = found["soft"]
        return (
            parse_ablation(found["ablation"]),
            None if soft is None else Soft(float(soft["temperature"]), soft["best"]),
        )
    except (KeyError, TypeError, ValueError, CostcertError) as error:
        raise StoreError(f"{path} is damaged: {error}") from None


def tune(
    votes: Votes,
    patches: AnyPatch | Iterable[AnyPatch],
    k: int | Iterable[int] = (1, 5),
    *,
    most_passes: int | None = None,
    temperature: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Tuning:
    """Choose which mutants vote and at what temperature.

    Args:
        votes: of validation images, with all mutants to choose from; soft ballots with many labels at a high
            temperature leave the most choice.
        k: the list lengths to optimise for.
        most_passes: the most mutants to use.
        temperature: of the soft ballots, if the votes do not record it.
        progress: called with the number of finished folds and the number of folds.
    """
    check_votes(votes)
    ballots = VoteEstimates(votes.require_complete("tuning"), temperature)
    on_progress = progress or (lambda done, folds: None)
    goal = Goal(tuple(concrete_patches(patches, votes.image_size)), tuple(positive_ints(k, "k")))
    if len(votes) < 2 * FOLDS:
        raise CostcertError(f"tuning needs at least {2 * FOLDS} images, got {len(votes)}")
    on_progress(0, FOLDS + 1)
    chosen = list(_steps(ballots, goal, most_passes))
    scores = [goal.scores(ballots.under(setting)) for _, setting in chosen]
    on_progress(1, FOLDS + 1)
    cross_validated = np.zeros((len(chosen), len(votes)))
    # Neighbouring images are often similar (frames of one video), so folds are contiguous.
    for fold, held_out in enumerate(np.array_split(np.arange(len(votes)), FOLDS)):
        rest = np.setdiff1d(np.arange(len(votes)), held_out)
        for row, (_, setting) in enumerate(_steps(ballots.take(rest), goal, most_passes)):
            cross_validated[row, held_out] = goal.scores(ballots.take(held_out).under(setting))
        on_progress(fold + 2, FOLDS + 1)
    steps = [
        Step(name, setting, ballots.under(setting).num_mutants, float(reached.mean()), float(held_out.mean()))
        for (name, setting), reached, held_out in zip(chosen, scores, cross_validated, strict=True)
    ]
    best = None if votes.labels is None else int(votes.labels.shape[2])
    # A step that does not improve the cross-validated accuracy is not taken.
    return Tuning(max(steps, key=lambda step: step.cross_validated).setting, best, goal, steps, len(votes))


def _steps(ballots: VoteEstimates, goal: Goal, most_passes: int | None) -> Iterator[tuple[str, Setting]]:
    """All mutants hard; all mutants at the best temperature; and the best mutants at the best temperature."""
    search = _Search(ballots, goal, most_passes)
    yield "all, hard", ballots.everything
    soft = search.best(_temperatures(ballots, ballots.everything))
    yield "all, soft", soft
    yield "chosen ones", search.climb(soft)


class _Search:
    """Local search over settings, compared on some of the images."""

    def __init__(self, ballots: VoteEstimates, goal: Goal, most_passes: int | None) -> None:
        count = len(ballots.votes)
        some = np.unique(np.linspace(0, count - 1, min(count, _SEARCH_IMAGES)).astype(int))
        self._ballots = ballots.take(some)
        self._goal = goal
        self._most_passes = most_passes
        self._scores: dict[Setting, float] = {}

    def score(self, setting: Setting) -> float:
        if setting not in self._scores:
            votes = self._ballots.under(setting)
            fits = self._most_passes is None or votes.num_mutants <= self._most_passes
            # Too many passes score below every setting that fits, and the more passes the lower.
            self._scores[setting] = (
                float(self._goal.scores(votes).mean()) if fits else -float(votes.num_mutants)
            )
        return self._scores[setting]

    def best(self, settings: Iterable[Setting]) -> Setting:
        """The setting with the highest score; the first of several."""
        return max(settings, key=self.score)

    def climb(self, setting: Setting) -> Setting:
        """The local optimum reached from here by changing span, stride or temperature."""
        reach = _reach(setting.ablation, self._ballots.votes)
        step = max(1, reach // 8)
        while True:
            better = self.best(
                [
                    setting,
                    *_spans(setting, self._ballots.votes, step),
                    *_strides(setting, self._ballots.votes),
                ]
            )
            better = self.best([better, *_temperatures(self._ballots, better)])
            if better == setting and step == 1:
                return setting
            step = step if better != setting else max(1, step // 2)
            setting = better


def _temperatures(ballots: VoteEstimates, setting: Setting) -> list[Setting]:
    return [replace(setting, temperature=temperature) for temperature in ballots.temperatures]


def _reach(ablation: Ablation, votes: Votes) -> int:
    """The number of starting positions of a family; 1 for families whose span is not tuned."""
    return 1 if not isinstance(ablation, Columns | Rows) else len(_positions(ablation, votes))


def _positions(ablation: Ablation, votes: Votes) -> list[int]:
    return [
        (region.columns if isinstance(ablation, Columns) else region.rows).start
        for region in ablation.regions(votes.image_size)
    ]


def _spans(setting: Setting, votes: Votes, step: int) -> Iterator[Setting]:
    """The setting with one or both ends of the span moved by `step` positions."""
    ablation = setting.ablation
    if not isinstance(ablation, Columns | Rows) or not isinstance(votes.ablation, Columns | Rows):
        return
    all_positions = _positions(votes.ablation, votes)
    own = _positions(ablation, votes)
    # A span may start at any evaluated mutant, and have any length that the stride allows.
    first, last = all_positions.index(own[0]), all_positions.index(own[-1])
    for move in (-step, 0, step):
        for stretch in (-step, 0, step):
            begin, end = first + move, last + stretch
            if 0 <= begin <= end < len(all_positions) and (move or stretch):
                yield replace(
                    setting,
                    ablation=replace(ablation, span=(all_positions[begin], all_positions[end])),
                )


def _strides(setting: Setting, votes: Votes) -> Iterator[Setting]:
    """The setting with every mutant that was evaluated, every second one, and so on."""
    given = votes.ablation
    if not isinstance(setting.ablation, Columns | Rows | Blocks) or not isinstance(
        given, Columns | Rows | Blocks
    ):
        return
    for factor in STRIDES:
        yield replace(setting, ablation=replace(setting.ablation, stride=factor * given.stride))
