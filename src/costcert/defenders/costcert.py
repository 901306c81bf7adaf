"""CostCert, the paper's defender: what must the attacker pay to push the true label out of the top k?

With clean votes α_p (ballots of mutants that patch p does not touch) and q_p ballots under the attacker's
control, rival y needs gap_p[y] = max(0, α_p[y0] - α_p[y]) more votes to tie with the true label y0. The
attacker lifts rivals cheapest first: lifted(p) is the largest j such that the j smallest gaps sum to at
most q_p.

    min-k = 1 + max over p of lifted(p)

This is Eq. 1 and Theorem 3 of the paper with the budget of each position counted by itself, and it is exact:
no rewriting of the touched ballots does worse, and one does just this. The formula is
`kernels.cheapest_first`, and `kernels.cheapest_first_soft` for soft ballots, whose votes are units and whose
budget is cap·q_p.
"""

from __future__ import annotations

from collections.abc import Sequence

from costcert.defenders import kernels
from costcert.defenders.base import Defender
from costcert.defenders.worst_case import Counts
from costcert.geometry.touch import Touched
from costcert.votes.table import Votes


class CostCert(Defender):
    name = "costcert"
    title = "CostCert"
    meaning = (
        "Counts how many votes the attacker must pay to lift rivals past the right label, the cheapest "
        "rivals first; it is exact: one attack on the votes reaches the bound and none exceeds it."
    )
    reads_unknown = ranks_unknown = True

    def rivals(self, votes: Votes, patches: Sequence[Touched], ties: str) -> Counts:
        return self.passing(kernels.CHEAPEST_FIRST, votes, patches, ties)
