"""DRS: the margin of all votes against one budget Δ, the largest q_p (the paper's Strategy 1).

    min-k = 1 + #{y ≠ y0 : v[y] + Δ ≥ v[y0] - Δ}

Certifies top-1 where the margin exceeds 2Δ. The same comparison as CBN, against an attacker who touches no
mutant in particular but has a budget of 2Δ.
"""

from __future__ import annotations

from collections.abc import Sequence

from costcert.defenders import kernels
from costcert.defenders.base import Defender
from costcert.defenders.worst_case import Counts
from costcert.geometry.touch import Touched
from costcert.votes.table import Votes


class Drs(Defender):
    name = "drs"
    title = "DRS"
    meaning = (
        "Derandomised smoothing: the lead in votes over each rival must exceed twice the largest number of "
        "votes that a patch can touch."
    )
    reads_unknown = ranks_unknown = True

    def rivals(self, votes: Votes, patches: Sequence[Touched], ties: str) -> Counts:
        nothing = [Touched.nothing(votes.num_mutants)] * len(patches)
        budgets = [2 * votes.cap * touched.delta for touched in patches]
        return self.passing(kernels.PAIRWISE, votes, nothing, ties, budgets)
