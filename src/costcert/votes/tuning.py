"""Tuning: which mutants vote, at what temperature, and which defender ranks by their votes.

Any rule that is fixed before an image is seen is sound: the span of starting positions, their stride, the
temperature of soft ballots, the defender, and the patch that it masks for. All are chosen from the ballots of
validation images, without evaluating the model again, and measured by cross-validation: a setting is chosen
on four fifths of the images and measured on the remaining fifth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from costcert.certification.certify import AnyPatch, certify, concrete_patches
from costcert.defenders import chosen, find
from costcert.errors import CostcertError, StoreError
from costcert.geometry.ablations import Masks, parse_ablation
from costcert.geometry.patches import OnePatch, Several, parse_patch
from costcert.geometry.sizes import positive_int, positive_ints, shown
from costcert.geometry.touch import touched
from costcert.store.files import read_json, write_json
from costcert.store.locations import Location
from costcert.votes.defence import Defence, Soft, is_positive
from costcert.votes.search import Goal as Goal
from costcert.votes.search import Search, Setting, Trials, VoteEstimates, refusal
from costcert.votes.table import Votes, check_votes
from costcert.votes.validation import shortened

FORMAT, VERSION = "costcert tuning", 1
# Name of the file with the tuned setting; `vote` looks for it in the folder of a model.
TUNED = "tuned.json"

# The defenders among which `tune` chooses unless it is told others.
VOTING, MASKING = ("costcert", "patchguard"), ("patchcleanser",)
# Also tried where a patch has at most this many positions that differ: its time grows with their square.
_OF_FEW_POSITIONS, _FEW_POSITIONS = "double-masking", 64
FOLDS = 5

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Step:
    """One step of the search: a setting, and its certified accuracy.

    Args:
        passes: evaluations of the network per image.
        reached: on the images it was chosen on.
        cross_validated: on images it was not chosen on.
        by_patch: the latter for each patch (outer) and k (inner) of the goal.
    """

    name: str
    setting: Setting
    passes: int
    reached: float
    cross_validated: float
    by_patch: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Choice:
    """The best setting of one defender for one patch and one k, of all that the search tried.

    Args:
        reached, cross_validated: as for `Step`.
    """

    patch: OnePatch | Several
    k: int
    setting: Setting
    reached: float
    cross_validated: float


@dataclass(frozen=True)
class Tuning:
    """The result of `tune`: the chosen setting, and what others would give.

    Args:
        setting: the best one for the goal.
        best: labels per soft ballot.
        steps: those that led to it, for each defender.
        choices: the best setting of each defender for each patch and k alone.
        model: name and digest of the network that voted, where the votes record it.
    """

    setting: Setting
    best: int | None
    goal: Goal
    steps: Sequence[Step]
    choices: Sequence[Choice]
    images: int
    model: Mapping[str, Any] | None = None

    @property
    def step(self) -> Step:
        """The step that was chosen."""
        return next(step for step in self.steps if step.setting == self.setting)

    @property
    def defenders(self) -> list[str]:
        return list(dict.fromkeys(step.setting.defender for step in self.steps))

    def choice(self, patch: OnePatch | Several, k: int, defender: str | None = None) -> Choice:
        """The best setting for one patch and one k, of this defender or of all."""
        return max(
            (
                each
                for each in self.choices
                if (each.patch, each.k) == (patch, k) and defender in (None, each.setting.defender)
            ),
            key=lambda each: each.cross_validated,
        )

    def to_json(self) -> dict[str, Any]:
        soft, mask = self.setting.temperature, self.setting.mask
        return {
            "format": FORMAT,
            "version": VERSION,
            "ablation": str(self.setting.ablation),
            "soft": None if soft is None else {"temperature": soft, "best": self.best},
            "defender": self.setting.defender,
            "mask": None if mask is None else str(mask),
            "model": None if self.model is None else dict(self.model),
            "goal": {"patches": [str(patch) for patch in self.goal.patches], "k": list(self.goal.ks)},
            "images": self.images,
            "steps": [
                {"name": step.name, **_setting_json(step.setting), "passes": step.passes, **_accuracies(step)}
                for step in self.steps
            ],
            "choices": [
                {"patch": str(each.patch), "k": each.k, **_setting_json(each.setting), **_accuracies(each)}
                for each in self.choices
            ],
        }

    def write(self, path: Location) -> None:
        write_json(path, self.to_json())


def _setting_json(setting: Setting) -> dict[str, Any]:
    return {
        "defender": setting.defender,
        "mask": None if setting.mask is None else str(setting.mask),
        "ablation": str(setting.ablation),
        "temperature": setting.temperature,
    }


def _accuracies(measured: Step | Choice) -> dict[str, float]:
    return {"reached": measured.reached, "cross_validated": measured.cross_validated}


def read_tuned(path: Location) -> Defence:
    """The classifier chosen by `tune`, read from its file; files of earlier versions name no defender."""
    found = read_json(path)
    if not isinstance(found, dict) or found.get("format") != FORMAT or found.get("version") != VERSION:
        raise StoreError(
            f"{path} is not a file of `costcert tune`, or is of another version: run `costcert tune` again"
        )
    try:
        soft, defender, mask = found["soft"], found.get("defender"), found.get("mask")
        if not all(value is None or isinstance(value, str) for value in (defender, mask)):
            raise TypeError(f"defender and mask must be text, got {shortened((defender, mask))}")
        if mask is not None and (defender is None or not find(defender).masks):
            raise ValueError(f"it has a mask, {shortened(mask)}, but no defender that masks")
        return Defence(
            parse_ablation(found["ablation"]),
            soft=None if soft is None else Soft(float(soft["temperature"]), soft["best"]),
            defender=None if defender is None else find(defender).name,
            mask=None if mask is None else parse_patch(mask),
        )
    except (KeyError, TypeError, ValueError, OverflowError, CostcertError) as error:
        raise StoreError(f"{path} is damaged: {error}") from None


def tune(
    votes: Votes,
    patches: AnyPatch | Iterable[AnyPatch],
    k: int | Iterable[int] = (1, 5),
    *,
    defenders: str | Iterable[str] | None = None,
    most_passes: int | None = None,
    temperature: float | None = None,
    progress: Progress | None = None,
) -> Tuning:
    """Choose which mutants vote, at what temperature, and which defender ranks by their votes.

    Args:
        votes: of validation images, with all mutants to choose from; soft ballots with many labels at a high
            temperature leave the most choice.
        k: the list lengths to optimise for.
        defenders: the names to choose from; by default costcert, patchguard and, for small images,
            double-masking; or patchcleanser for masks.
        most_passes: the most evaluations of a network per image; an ensemble's networks count each.
        temperature: of the soft ballots, if the votes do not record it.
        progress: called with the number of finished folds and the number of folds.
    """
    ballots = _checked(votes, temperature, most_passes)
    goal = Goal(tuple(concrete_patches(patches, votes.image_size)), tuple(positive_ints(k, "k")))
    names = _candidates(votes, goal, defenders)
    for sentence in _refusals(votes, goal, names).values():
        raise CostcertError(sentence)
    return _tuned(ballots, goal, names, most_passes, progress)


def _checked(votes: Votes, temperature: float | None, most_passes: int | None) -> VoteEstimates:
    check_votes(votes)
    if most_passes is not None:
        positive_int(most_passes, "the most passes")
    if temperature is not None and not is_positive(temperature):
        raise CostcertError(f"the temperature must be above 0, got {temperature!r}")
    if len(votes) < 2 * FOLDS:
        raise CostcertError(f"tuning needs at least {2 * FOLDS} images, got {len(votes)}")
    return VoteEstimates(votes.require_complete("tuning"), temperature)


def _candidates(votes: Votes, goal: Goal, names: str | Iterable[str] | None) -> list[str]:
    """The names of the defenders to choose from."""
    if names is None and isinstance(votes.ablation, Masks):
        return list(MASKING)
    if names is None:
        positions = (len(touched(votes.ablation, patch, votes.image_size)) for patch in goal.patches)
        few = max(positions) <= _FEW_POSITIONS
        return [*VOTING, _OF_FEW_POSITIONS] if few else list(VOTING)
    # A defender that reads hard ballots only is tried with those.
    return [each.name for each in chosen(names, ablation=votes.ablation, soft=False, partial=False)]


def _refusals(votes: Votes, goal: Goal, names: Sequence[str]) -> dict[OnePatch | Several, str]:
    """The patches about which none of these defenders has anything to say, each with the reason."""
    said = {patch: [refusal(name, votes, patch) for name in names] for patch in goal.patches}
    return {
        patch: sentences[-1]
        for patch, sentences in said.items()
        if None not in sentences and sentences[-1] is not None
    }


class _Found(NamedTuple):
    """What one search found: settings step by step, and for each defender, patch and k the best one."""

    steps: list[tuple[str, Setting]]
    choices: dict[tuple[str, int, int], Setting]

    @classmethod
    def of(cls, search: Search, goal: Goal, names: Sequence[str]) -> _Found:
        steps = [step for name in names for step in search.steps(name)]
        cells = [
            (name, p, k) for name in names for p in range(len(goal.patches)) for k in range(len(goal.ks))
        ]
        best = {cell: search.best_for(*cell) for cell in cells}
        return cls(steps, {cell: setting for cell, setting in best.items() if setting is not None})

    def measured(self, ballots: VoteEstimates, goal: Goal) -> _Measured:
        known: dict[Setting, npt.NDArray[np.bool_]] = {}

        def certified(setting: Setting) -> npt.NDArray[np.bool_]:
            if setting not in known:
                known[setting] = goal.certified(ballots.under(setting), setting)
            return known[setting]

        return _Measured(
            [certified(setting) for _, setting in self.steps],
            {cell: certified(setting)[:, cell[1], cell[2]] for cell, setting in self.choices.items()},
        )


class _Measured(NamedTuple):
    """Which images are certified: [N, P, K] for each step, [N] for each choice."""

    steps: list[npt.NDArray[np.bool_]]
    choices: dict[tuple[str, int, int], npt.NDArray[np.bool_]]


def _tuned(
    ballots: VoteEstimates,
    goal: Goal,
    names: Sequence[str],
    most_passes: int | None,
    progress: Progress | None,
) -> Tuning:
    votes = ballots.votes
    on_progress = progress or (lambda done, folds: None)
    on_progress(0, FOLDS + 1)
    trials = Trials(ballots, goal)
    found = _Found.of(Search(trials, most_passes), goal, names)
    reached = found.measured(ballots, goal)
    passes = [ballots.passes(setting) for _, setting in found.steps]
    if most_passes is not None and min(passes) > most_passes:
        raise CostcertError(
            f"{votes.ablation} cannot be tuned to {most_passes} passes per image: the fewest found are "
            f"{min(passes)}"
        )
    on_progress(1, FOLDS + 1)
    folds = []
    # Neighbouring images are often similar (frames of one video), so folds are contiguous.
    for fold, held_out in enumerate(np.array_split(np.arange(len(votes)), FOLDS)):
        chosen_there = _Found.of(Search(trials, most_passes, held_out), goal, names)
        folds.append(chosen_there.measured(ballots.take(held_out), goal))
        on_progress(fold + 2, FOLDS + 1)
    held_out_steps = [np.concatenate(parts) for parts in zip(*(fold.steps for fold in folds), strict=True)]
    steps = [
        Step(
            name,
            setting,
            count,
            float(there.mean()),
            float(held_out.mean()),
            tuple(tuple(map(float, row)) for row in held_out.mean(axis=0)),
        )
        for (name, setting), count, there, held_out in zip(
            found.steps, passes, reached.steps, held_out_steps, strict=True
        )
    ]
    choices = [
        Choice(
            goal.patches[p],
            goal.ks[k],
            setting,
            float(reached.choices[defender, p, k].mean()),
            # A fold may have found no setting with so few passes, which certifies nothing.
            float(
                sum(fold.choices[defender, p, k].sum() for fold in folds if (defender, p, k) in fold.choices)
            )
            / len(votes),
        )
        for (defender, p, k), setting in found.choices.items()
    ]
    # A step that does not improve the cross-validated accuracy is not taken.
    fitting = [step for step in steps if most_passes is None or step.passes <= most_passes]
    return Tuning(
        max(fitting, key=lambda step: step.cross_validated).setting,
        None if votes.labels is None else int(votes.labels.shape[2]),
        goal,
        steps,
        choices,
        len(votes),
        _model_of(votes),
    )


def _model_of(votes: Votes) -> dict[str, Any] | None:
    model = votes.provenance.get("model")
    if not isinstance(model, Mapping):
        return None
    return {key: model[key] for key in ("name", "digest") if isinstance(model.get(key), str)}


@dataclass(frozen=True)
class Row:
    """One run of a comparison.

    Args:
        tuning: None if the run has nothing to say about any of the patches.
        clean: the share of images whose true label is predicted first, under the chosen setting.
        refusals: the patches it has nothing to say about, each with the reason.
    """

    name: str
    tuning: Tuning | None
    clean: float
    refusals: Mapping[OnePatch | Several, str]

    @property
    def score(self) -> float:
        """The goal, cross-validated; patches that were refused count as not certified."""
        return 0.0 if self.tuning is None else self.tuning.step.cross_validated

    def certified(self, patch: OnePatch | Several, k: int) -> float | None:
        """The cross-validated accuracy of the chosen setting; None where it is refused."""
        if self.tuning is None or patch in self.refusals:
            return None
        goal = self.tuning.goal
        return self.tuning.step.by_patch[goal.patches.index(patch)][goal.ks.index(k)]


@dataclass(frozen=True)
class Comparison:
    """The result of `compare_runs`: each run at its best setting, on the same images."""

    rows: Sequence[Row]
    goal: Goal
    images: int

    @property
    def best(self) -> Row:
        """The run that reaches most of the goal; the first of several."""
        return max(self.rows, key=lambda row: row.score)


def compare_runs(
    runs: Mapping[str, Votes],
    patches: AnyPatch | Iterable[AnyPatch],
    k: int | Iterable[int] = (1, 5),
    *,
    defenders: str | Iterable[str] | None = None,
    most_passes: int | None = None,
    temperature: float | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Which of several runs certifies most: each is tuned on its votes of the same validation images.

    Args:
        runs: votes by name, such as those of one network on columns and of another on masks.
        patches: as for `tune`, and so are the others; a patch that a run's masks do not cover counts as not
            certified by that run.
    """
    if not isinstance(runs, Mapping) or not runs:
        raise CostcertError(f"runs must be votes by name, as in {{'columns': votes}}, got {shortened(runs)}")
    names = list(runs)
    ballots = {name: _checked(runs[name], temperature, most_passes) for name in names}
    first = runs[names[0]]
    for name in names[1:]:
        _refuse_other_images(names[0], first, name, runs[name])
    goal = Goal(tuple(concrete_patches(patches, first.image_size)), tuple(positive_ints(k, "k")))
    # A generator would be used up by the first run.
    wanted = defenders if defenders is None or isinstance(defenders, str) else list(defenders)
    on_progress = progress or (lambda done, folds: None)
    rows = []
    for at, name in enumerate(names):

        def of_all(done: int, folds: int, at: int = at) -> None:
            on_progress(at * folds + done, len(names) * folds)

        rows.append(_row(name, ballots[name], goal, wanted, most_passes, of_all))
    comparison = Comparison(rows, goal, len(first))
    if comparison.best.tuning is None:
        raise CostcertError(next(iter(rows[0].refusals.values())))
    return comparison


def _row(
    name: str,
    ballots: VoteEstimates,
    goal: Goal,
    wanted: str | Iterable[str] | None,
    most_passes: int | None,
    progress: Progress,
) -> Row:
    votes = ballots.votes
    candidates = _candidates(votes, goal, wanted)
    refused = _refusals(votes, goal, candidates)
    if len(refused) == len(goal.patches):
        return Row(name, None, 0.0, refused)
    heard = [
        each for each in candidates if any(refusal(each, votes, patch) is None for patch in goal.patches)
    ]
    try:
        tuning = _tuned(ballots, goal, heard, most_passes, progress)
    except CostcertError as error:
        return Row(name, None, 0.0, dict.fromkeys(goal.patches, str(error)))
    return Row(name, tuning, _clean(ballots, tuning.setting, goal), refused)


def _clean(ballots: VoteEstimates, setting: Setting, goal: Goal) -> float:
    votes = ballots.under(setting)
    patch = next(
        patch
        for patch in ((setting.mask,) if setting.mask is not None else goal.patches)
        if refusal(setting.defender, votes, patch) is None
    )
    ranks = certify(votes, patch, setting.defender, mask=setting.mask).rank(setting.defender, patch)
    return float((ranks == 1).mean())


def _refuse_other_images(one: str, first: Votes, other: str, votes: Votes) -> None:
    """Raise unless both are votes on the same images, in the same order."""
    if first.image_size != votes.image_size:
        raise CostcertError(
            f"{one} voted on images of {shown(first.image_size)} and {other} on {shown(votes.image_size)}, "
            "where a patch in pixels is another patch: compare runs of one input size"
        )
    if first.num_classes != votes.num_classes:
        raise CostcertError(
            f"{one} has {first.num_classes} classes and {other} has {votes.num_classes}: compare runs of one "
            "classification problem"
        )
    for what, mine, theirs in (
        ("images", first.image_ids, votes.image_ids),
        ("true labels", first.truth, votes.truth),
    ):
        if not np.array_equal(mine, theirs):
            raise CostcertError(
                f"{one} and {other} have other {what} ({len(first):,} and {len(votes):,} images): compare "
                "votes on the same validation images"
            )
