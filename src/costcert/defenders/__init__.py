"""The defenders by name: the built-in ones, and any that an installed package registers.

A package adds one with an entry point in the group `costcert.defenders`, whose name is the defender's and
whose value is a subclass of `costcert.defenders.base.Defender`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from costcert.errors import CostcertError, SpellingError, nearest
from costcert.geometry.sizes import several

if TYPE_CHECKING:
    from costcert.defenders.base import Defender
    from costcert.geometry.ablations import Ablation

BUILTIN = {
    "costcert": ("costcert", "CostCert"),
    "costcert-masks": ("masks", "CostCertMasks"),
    "patchguard": ("patchguard", "PatchGuard"),
    "double-masking": ("double_masking", "DoubleMasking"),
    "cbn": ("cbn", "Cbn"),
    "drs": ("drs", "Drs"),
    "patchcleanser": ("patchcleanser", "PatchCleanser"),
}


def find(name: Any) -> Defender:
    """The defender of this name."""
    if not isinstance(name, str):
        raise SpellingError(
            f"a defender must be a name, got {name!r}: use one of {', '.join(BUILTIN)}, or all"
        )
    return _find(name)


@cache
def _find(name: str) -> Defender:
    from costcert.defenders.base import Defender

    if name in BUILTIN:
        module, attribute = BUILTIN[name]
        found = getattr(import_module(f"costcert.defenders.{module}"), attribute)
    else:
        plugins = {point.name: point for point in entry_points(group="costcert.defenders")}
        if name not in plugins:
            known = [*BUILTIN, *plugins]
            raise SpellingError(
                f"unknown defender {name!r}{nearest(name, known)}: use one of {', '.join(known)}, or all"
            )
        found = plugins[name].load()
    if not (isinstance(found, type) and issubclass(found, Defender)):
        raise CostcertError(
            f"{name!r} is registered as a defender but is not a subclass of Defender: {found!r}"
        )
    return found()


def default_for(ablation: Ablation) -> str:
    """The defender of votes for which none was named."""
    from costcert.geometry.ablations import Masks

    return "patchcleanser" if isinstance(ablation, Masks) else "costcert"


def chosen(names: str | Iterable[str], *, ablation: Ablation, soft: bool, partial: bool) -> list[Defender]:
    """The defenders of these names, each once.

    `all` means the built-in ones that read such ballots, but those that are certified by name only.

    Args:
        ablation: which mutants voted; for masks, `all` leaves out defenders that count votes.
        soft: whether the ballots are soft.
        partial: whether some mutants were not evaluated.
    """
    wanted = several(names)
    if wanted == ["all"]:
        suited = _suited(ablation)
        return [each for each in suited if each.refusal(soft, partial) is None and not each.by_name_only]
    defenders = list(dict.fromkeys(find(name) for name in wanted))
    if not defenders:
        raise SpellingError(f"no defender given: use one of {', '.join(BUILTIN)}, or all")
    for defender in defenders:
        refusal = defender.refusal(soft, partial)
        if refusal is not None:
            raise CostcertError(refusal)
    return defenders


def _suited(ablation: Ablation) -> list[Defender]:
    from costcert.geometry.ablations import Masks

    return [each for each in map(find, BUILTIN) if each.reads_masks == isinstance(ablation, Masks)]


def left_out(names: str | Iterable[str], *, ablation: Ablation, soft: bool, partial: bool) -> list[str]:
    """Why `all` means fewer than all built-in defenders: a sentence for each that is not among them."""
    if list([names] if isinstance(names, str) else names) != ["all"]:
        return []
    refusals = (each.refusal(soft, partial) for each in _suited(ablation))
    # After the colon a refusal says which defenders to use instead, which are those that `all` does mean.
    return [refusal.partition(":")[0] for refusal in refusals if refusal is not None]
