"""Attacks on the ballots of masks: which rivals get past the true label, and by which ballots.

A label is ranked by its best row, S[y] = max over i of min over j of c_ij[y] (defenders/patchcleanser.py).
An attacker who holds the touched mutants takes them from the true label, which keeps t = L_p, the best of its
safe rows. A rival then needs one row that gives it t: its clean mutants must do so already, and each of its
touched mutants is given t units. A touched mutant belongs to two rows and has `cap` units, so it can serve
cap // t rivals. One rival that passes the bound of the certificate can always be served. Several can stand in
each other's way; then the attack that is found here may lift fewer than the certificate allows for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from costcert.defenders.patchcleanser import gifts, masks_of
from costcert.votes.table import Votes

Indices = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# Above this number of rivals, those that stand in each other's way are served in turn, without a search.
_SEARCHED = 12
# Steps of a search, after which the best result so far is taken.
_STEPS = 20_000


@dataclass(frozen=True, eq=False)
class Attack:
    """Rewritten ballots of the touched mutants.

    Args:
        lifted: rivals whose score reaches that of the true label.
        following: the rival that comes nearest of the others; None if all are lifted.
        short: what that one lacks, in units.
        mutants: the new ballots: `mutants[i]` gives `units[i]` units to `labels[i]`.
        labels: see `mutants`.
        units: see `mutants`.
        scores: [L], S after the attack.
        position: of the true label by these scores, equal ones counting as lost.
    """

    lifted: list[int]
    following: int | None
    short: int
    mutants: Indices
    labels: Indices
    units: Indices
    scores: Indices
    position: int


class MaxMin:
    """The ballots of one image, all of them known."""

    def __init__(self, votes: Votes, image: int) -> None:
        self.rows = masks_of(votes).table()
        self.truth, self.cap = int(votes.truth[image]), votes.cap
        self.given = gifts(votes, image)

    def attack(self, touched: Bools, most: int | None = None, first: Sequence[int] = ()) -> Attack:
        """The attack that lifts as many rivals as is found to be possible, up to `most`.

        Args:
            touched: [B], the mutants that the attacker holds; some row must have none of them.
            first: rivals that are lifted before others.
        """
        held = touched[self.rows]
        safe = ~held.any(axis=1)
        sure = int(self.given[self.rows[safe], self.truth].min(axis=1).max())
        # What each row gives to each label at most: [n, L].
        reach = np.where(held[..., None], self.cap, self.given[self.rows]).min(axis=1)
        best = reach.max(axis=0)
        best[self.truth] = -1
        able = [*first, *np.argsort(-best, kind="stable").tolist()]
        able = [y for y in dict.fromkeys(able) if best[y] >= sure]
        goal = len(able) if most is None else min(most, len(able))
        serving = _served(
            {y: np.flatnonzero(reach[:, y] >= sure).tolist() for y in able},
            held,
            self.cap // sure if sure else len(able),
            goal,
        )
        rest = [y for y in np.argsort(-best, kind="stable").tolist() if y not in serving and y != self.truth]
        following = rest[0] if rest else None
        spent = self._spent(touched, serving, sure, following)
        mutants, labels = np.nonzero(spent)
        after = np.where(touched[:, None], spent, self.given)
        scores = after[self.rows].min(axis=1).max(axis=0)
        return Attack(
            list(serving),
            following,
            0 if following is None else sure - int(best[following]),
            mutants,
            labels,
            spent[mutants, labels],
            scores,
            int((scores >= scores[self.truth]).sum()),
        )

    def _spent(self, touched: Bools, serving: dict[int, int], sure: int, following: int | None) -> Indices:
        """[B, L], the ballots of the touched mutants; what nobody needs goes to one rival."""
        spent = np.zeros_like(self.given)
        for rival, row in serving.items():
            needed = self.rows[row][touched[self.rows[row]]]
            spent[needed, rival] = sure
        favourite = next((rival for rival, row in serving.items() if touched[self.rows[row]].any()), None)
        if favourite is None:
            favourite = following if following is not None else next(iter(serving), None)
        if favourite is not None:
            spent[touched, favourite] += self.cap - spent[touched].sum(axis=1)
        return spent


def _served(options: dict[int, list[int]], held: Bools, room: int, goal: int) -> dict[int, int]:
    """A row for as many rivals as is found to be possible, up to `goal`.

    Args:
        options: the rows that can serve each rival, at least one.
        held: [n, n], whether mutant (i, j) is touched.
        room: how many rivals a touched mutant can serve.
    """
    is_safe: Bools = np.asarray(~held.any(axis=1))
    free = {y: safe[0] for y, rows in options.items() if (safe := [i for i in rows if is_safe[i]])}
    free = dict(list(free.items())[:goal])
    others = {y: rows for y, rows in options.items() if y not in free}
    missing = goal - len(free)
    used = np.zeros(len(held), dtype=np.int64)
    found = _in_turn(others, held, room, missing, used)
    if len(found) < missing and len(others) <= _SEARCHED:
        found = _Search(others, held, room, missing, found).best
    return {**free, **found}


def _fits(row: int, held: Bools, room: int, used: Indices) -> bool:
    """Whether one more rival can be served by this row: mutant (i, j) serves those of rows i and j."""
    both = used + used[row]
    both[row] = used[row]
    return bool((both[held[row]] < room).all())


def _in_turn(
    options: dict[int, list[int]], held: Bools, room: int, goal: int, used: Indices
) -> dict[int, int]:
    """Each rival gets the first row that fits, those with touched mutants in common with few rows first."""
    conflicts = held.sum(axis=1)
    found: dict[int, int] = {}
    for rival, rows in options.items():
        if len(found) == goal:
            break
        fitting = [row for row in rows if _fits(row, held, room, used)]
        if fitting:
            found[rival] = min(fitting, key=lambda row: int(conflicts[row]))
            used[found[rival]] += 1
    return found


class _Search:
    """Backtracking over the rows of each rival."""

    def __init__(
        self, options: dict[int, list[int]], held: Bools, room: int, goal: int, best: dict[int, int]
    ) -> None:
        self.options, self.rivals = options, sorted(options, key=lambda rival: len(options[rival]))
        self.held, self.room, self.goal, self.best = held, room, goal, best
        self.used = np.zeros(len(held), dtype=np.int64)
        self.steps = 0
        self._try(0, {})

    def _try(self, at: int, chosen: dict[int, int]) -> None:
        self.steps += 1
        if len(chosen) > len(self.best):
            self.best = dict(chosen)
        hopeless = len(chosen) + len(self.rivals) - at <= len(self.best)
        if hopeless or len(self.best) >= self.goal or self.steps > _STEPS:
            return
        rival = self.rivals[at]
        for row in self.options[rival]:
            if _fits(row, self.held, self.room, self.used):
                self.used[row] += 1
                self._try(at + 1, {**chosen, rival: row})
                self.used[row] -= 1
        self._try(at + 1, chosen)
