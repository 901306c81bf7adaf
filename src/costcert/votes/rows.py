"""Votes of masks, row by row: which mutants to evaluate next, and when a prediction is settled.

Row i is the mutants that hide mask i. At a position that mask i alone covers, a certificate rests on the
whole of row i, for every k. So an image that turns out to be certified takes all mutants, but for rows of
masks that others make superfluous. What can end early is a refusal, by one row that fails, and the order of
labels on the clean image, by one row in which a label stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from costcert.defenders.patchcleanser import gifts, masks_of
from costcert.votes.table import Votes

Indices = npt.NDArray[np.int64]


class Rows(NamedTuple):
    """What the known ballots of one image say.

    known: [B].
    low: [n, L], what each row gives to each label if unknown mutants give nothing.
    high: [n, L], the same if they give it all.
    counted: [L], votes, or units, of the known ballots.
    """

    known: npt.NDArray[np.bool_]
    low: Indices
    high: Indices
    counted: Indices

    @classmethod
    def of(cls, votes: Votes, image: int) -> Rows:
        known = np.ones(votes.num_mutants, np.bool_) if votes.known is None else votes.known[image]
        given, rows = gifts(votes, image), masks_of(votes).table()
        given[~known] = 0
        low = given[rows].min(axis=1)
        given[~known] = votes.cap
        high = given[rows].min(axis=1)
        return cls(known, low, high, given[known].sum(axis=0))

    @property
    def leader(self) -> int:
        """The label with the most votes."""
        return int(self.counted.argmax())

    def listed(self) -> Indices:
        """[L], labels by their best row, then by votes, then the lowest, as far as ballots are known."""
        return np.lexsort((-self.counted, -self.low.max(axis=0)))


@dataclass(frozen=True)
class TopRows:
    """Stop when the first k labels by best row, then by votes, in order, are those of all ballots.

    The best row of label y is worth low[y] at least, if unknown mutants give it nothing, and high[y] at most.
    All unknown mutants together have R units. Whatever they give, y is ahead of z if

        low[y] > high[z], or
        low[y] = high[z], and y leads by more than R votes, or by R with ties in its favour.

    Each of the first k labels has to be ahead of all that follow it. One row in which a label has more than
    half of the units leaves less to all others in every row, so the first label is often settled early.
    Labels without such a row are ranked by votes, which nearly all ballots decide: of hard ballots these are
    all labels but the first, and where no row is unanimous all labels.
    """

    k: int

    def lacking(self, votes: Votes) -> Indices:
        """[N], 0 if the known ballots decide, and 1 otherwise: at least one more has to be evaluated."""
        settled = [self._settled(Rows.of(votes, image), votes.cap) for image in range(len(votes))]
        return np.where(settled, 0, 1)

    def _settled(self, rows: Rows, cap: int) -> bool:
        listed, low, high = rows.listed(), rows.low.max(axis=0), rows.high.max(axis=0)
        remaining = cap * int((~rows.known).sum())
        for place, first in enumerate(listed[: self.k]):
            rest = listed[place + 1 :]
            lead = rows.counted[first] - rows.counted[rest]
            by_votes = (lead > remaining) | ((lead == remaining) & (first < rest))
            ahead = (low[first] > high[rest]) | ((low[first] == high[rest]) & by_votes)
            if not ahead.all():
                return False
        return True

    def predict(self, votes: Votes) -> Indices:
        """[N, k], the first labels by the known ballots."""
        return np.stack([Rows.of(votes, image).listed()[: self.k] for image in range(len(votes))])


def next_row(votes: Votes, image: int, *, of_truth: bool) -> list[int]:
    """The unknown mutants of the row that is most likely to decide; at first those that hide a single mask.

    The order of labels needs the row in which the leading label stands best. Once that is known, a
    certificate is refused by the row that gives least to the true label.
    """
    rows, table = Rows.of(votes, image), masks_of(votes).table()
    single: list[int] = table.diagonal().tolist()
    if not rows.known[single].all():
        return single
    unfinished = np.logical_not(rows.known[table].all(axis=1))
    best = int(rows.high[:, rows.leader].argmax())
    if of_truth and not unfinished[best]:
        own = rows.high[:, votes.truth[image]]
        best = int(np.where(unfinished, own, votes.cap + 1).argmin())
    elif not unfinished[best]:
        best = int(np.where(unfinished, rows.high[:, rows.leader], -1).argmax())
    return [mutant for mutant in table[best].tolist() if not rows.known[mutant]]
