"""The classifier that is certified: everything that turns the logits of a network into a list of labels.

It is described only here. The manifests of votes and certificates store it, and everything that certifies,
checks, deploys, attacks, tunes or displays reads it from there, so that no two parts of the program can mean
different classifiers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from numbers import Real
from typing import Any

from costcert.errors import CostcertError, StoreError
from costcert.geometry.ablations import Ablation, as_ablation, parse_ablation
from costcert.geometry.patches import Patch, parse_patch
from costcert.geometry.sizes import positive_int

# Default cap of a soft ballot: probabilities in steps of 1/65536.
UNITS = 65536

TIES = ("against", "lowest")


@dataclass(frozen=True)
class Soft:
    """How a soft ballot is made: softmax at a temperature, its best labels, rounded down to units.

    Args:
        temperature: a low one is close to a hard ballot; None if the ballots were made elsewhere.
        best: j, the number of labels that are kept.
        cap: U, the most units of a ballot.
    """

    temperature: float | None
    best: int
    cap: int = UNITS

    def __post_init__(self) -> None:
        if self.temperature is not None and not is_positive(self.temperature):
            raise CostcertError(f"the temperature must be above 0, got {self.temperature!r}")
        positive_int(self.best, "the number of labels of a soft ballot")
        positive_int(self.cap, "the cap of a soft ballot")

    def __str__(self) -> str:
        at = "an unknown temperature" if self.temperature is None else f"temperature {self.temperature:g}"
        return f"soft ballots of {self.best} labels at {at}"


@dataclass(frozen=True)
class Defence:
    """The classifier that is certified, except for its network.

    Args:
        ablation: which mutants vote.
        hide: how hidden pixels are shown to the network; None if the votes come from elsewhere.
        soft: how soft ballots are made; None for hard ones.
        defender: the defender that ranks the labels; None if the votes are ranked by none yet, or by several.
        mask: the patch that a masking defender masks for; None if it is the patch it is certified against.
        ties: `against` if every tie counts as lost, `lowest` if it goes to the lowest label.
    """

    ablation: Ablation
    hide: str | None = None
    soft: Soft | None = None
    defender: str | None = None
    mask: Patch | None = None
    ties: str = "against"

    def __post_init__(self) -> None:
        object.__setattr__(self, "ablation", as_ablation(self.ablation))
        if not isinstance(self.soft, Soft | None):
            raise CostcertError(f"soft must be a value like Soft(0.35, 4), got {self.soft!r}")
        check_ties(self.ties)

    def __str__(self) -> str:
        masking = "" if self.mask is None else f" masking {self.mask}"
        ranked = "" if self.defender is None else f", ranked by {self.defender}{masking}"
        return f"{self.ablation}, {self.soft or 'hard ballots'}{ranked}"

    def with_classes(self, num_classes: int) -> Defence:
        """The same classifier, with at most `num_classes` labels per soft ballot."""
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
        """Reads the result of `to_json`; errors name the manifest `where`."""
        try:
            soft, mask, hide, defender = (content[key] for key in ("soft", "mask", "hide", "defender"))
            if not all(value is None or isinstance(value, str) for value in (mask, hide, defender)):
                raise TypeError("mask, hide and defender must be text")
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


def check_ties(ties: Any) -> None:
    """Raise if this is not a way to treat ties."""
    if not isinstance(ties, str) or ties not in TIES:
        raise CostcertError(f"ties are 'against' or 'lowest', got {ties!r}")


def is_positive(value: Any) -> bool:
    """Whether this is a number above 0, and finite."""
    return not isinstance(value, bool) and isinstance(value, Real) and 0 < float(value) < float("inf")


def _soft(content: Mapping[str, Any]) -> Soft:
    temperature = content["temperature"]
    if isinstance(temperature, bool) or not isinstance(temperature, int | float | None):
        raise TypeError(f"the temperature must be a number, got {temperature!r}")
    return Soft(None if temperature is None else float(temperature), content["best"], content["cap"])
