"""Which classifier is certified: all that turns the logits of a network into a list of labels.

It is described here and nowhere else. The manifests of votes and certificates hold it, and whatever
certifies, checks, deploys, attacks, tunes or shows reads it from there, so that no two parts can mean
different classifiers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from costcert.errors import CostcertError, StoreError
from costcert.geometry.ablations import Ablation, parse_ablation
from costcert.geometry.patches import Patch, parse_patch
from costcert.geometry.sizes import positive_int

# The units a soft ballot may spread, unless said otherwise: probabilities in steps of 1/65536.
UNITS = 65536

TIES = ("against", "lowest")


@dataclass(frozen=True)
class Soft:
    """How a soft ballot is made: softmax at a temperature, its best labels, rounded downwards to units.

    Args:
        temperature: small ones come close to a hard ballot; None where the ballots were made elsewhere.
        best: j, the labels that are kept.
        cap: U, the most units of a ballot.
    """

    temperature: float | None
    best: int
    cap: int = UNITS

    def __post_init__(self) -> None:
        if self.temperature is not None and not 0 < self.temperature < float("inf"):
            raise CostcertError(f"a temperature is above 0, got {self.temperature}")
        positive_int(self.best, "the number of labels of a soft ballot")
        positive_int(self.cap, "the cap of a soft ballot")

    def __str__(self) -> str:
        at = "an unknown temperature" if self.temperature is None else f"temperature {self.temperature:g}"
        return f"soft ballots of {self.best} labels at {at}"


@dataclass(frozen=True)
class Defence:
    """The classifier that is certified, all but its network.

    Args:
        ablation: which mutants vote.
        hide: how the network is shown what a mutant does not keep; None where votes come from elsewhere.
        soft: how ballots are made; None for hard ones.
        defender: who ranks labels by the ballots; None where votes are not ranked yet, or by several.
        mask: the patch a masking defender masks for; None where it masks for the patch it is certified
            against.
        ties: `against` where every tie counts as lost, `lowest` where it goes to the lowest label.
    """

    ablation: Ablation
    hide: str | None = None
    soft: Soft | None = None
    defender: str | None = None
    mask: Patch | None = None
    ties: str = "against"

    def __post_init__(self) -> None:
        if self.ties not in TIES:
            raise CostcertError(f"ties are 'against' or 'lowest', got {self.ties!r}")

    def __str__(self) -> str:
        masking = "" if self.mask is None else f" masking {self.mask}"
        ranked = "" if self.defender is None else f", ranked by {self.defender}{masking}"
        return f"{self.ablation}, {self.soft or 'hard ballots'}{ranked}"

    def with_classes(self, num_classes: int) -> Defence:
        """A soft ballot names no more labels than there are."""
        if self.soft is None or self.soft.best <= num_classes:
            return self
        return replace(self, soft=replace(self.soft, best=num_classes))

    def to_json(self) -> dict[str, Any]:
        return {
            "ablation": str(self.ablation),
            "hide": self.hide,
            "soft": None if self.soft is None else asdict(self.soft),
            "defender": self.defender,
            "mask": None if self.mask is None else str(self.mask),
            "ties": self.ties,
        }

    @classmethod
    def from_json(cls, content: Any, where: str) -> Defence:
        """What `to_json` gave, or a sentence about what is wrong in the manifest `where`."""
        try:
            soft, mask, hide, defender = (content[key] for key in ("soft", "mask", "hide", "defender"))
            if not all(value is None or isinstance(value, str) for value in (mask, hide, defender)):
                raise TypeError("names should be text")
            return cls(
                parse_ablation(content["ablation"]),
                hide,
                None if soft is None else _soft(soft),
                defender,
                None if mask is None else parse_patch(mask),
                content["ties"],
            )
        except (KeyError, TypeError, ValueError, CostcertError) as error:
            raise StoreError(f"{where} does not say which classifier it is of: {error}") from None


def _soft(content: Mapping[str, Any]) -> Soft:
    temperature = content["temperature"]
    if isinstance(temperature, bool) or not isinstance(temperature, int | float | None):
        raise TypeError(f"a temperature of {temperature!r}")
    return Soft(None if temperature is None else float(temperature), content["best"], content["cap"])
