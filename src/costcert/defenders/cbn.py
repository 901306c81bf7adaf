"""PG♠ / CBN: each rival is compared with the true label by itself (the paper's Strategy 2, Theorem 1).

    rivals(p) = #{y ≠ y0 : α_p[y] + q_p ≥ α_p[y0]}        min-k = 1 + max over p of rivals(p)

Sound, but it lets the attacker spend the same q_p ballots once per rival. At k = 1 it equals CostCert.
"""

from __future__ import annotations

from collections.abc import Sequence

from costcert.defenders import kernels
from costcert.defenders.base import Defender
from costcert.defenders.worst_case import Counts
from costcert.geometry.touch import Touched
from costcert.votes.table import Votes


class Cbn(Defender):
    name = "cbn"
    title = "PG♠/CBN"
    meaning = (
        "Compares each rival with the right label by itself, as if the attacker could spend the same votes "
        "once for every rival."
    )
    reads_unknown = ranks_unknown = True

    def rivals(self, votes: Votes, patches: Sequence[Touched], ties: str) -> Counts:
        return self.passing(kernels.PAIRWISE, votes, patches, ties)
