"""Adaptive stopping: evaluate the mutants of an image only until bounds from the known ballots decide."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from costcert.certification.certify import AnyPatch, concrete_patches
from costcert.certification.guarantees import bounds
from costcert.geometry.patches import OnePatch, Several
from costcert.geometry.sizes import ImageSize, positive_ints
from costcert.votes.table import Votes

# Number of parts in which the mutants of an image are evaluated, one after the other.
_STEPS = 16


@dataclass(frozen=True, repr=False)
class StoppingRule:
    """Stop when it is decided whether the true label is in the top k, and stays there under these patches.

    For these patches and these k, certificates of the evaluated ballots equal those of all ballots. For
    others they are sound, but may be weaker.
    """

    patches: tuple[OnePatch | Several, ...]
    ks: tuple[int, ...]
    ties: str = "against"

    def __repr__(self) -> str:
        patches, ks = (", ".join(map(str, each)) for each in (self.patches, self.ks))
        return f"StoppingRule(patches {patches}; k {ks}; ties {self.ties})"

    @classmethod
    def parse(
        cls, patches: AnyPatch | Iterable[AnyPatch], k: int | Iterable[int], image_size: ImageSize
    ) -> StoppingRule:
        return cls(tuple(concrete_patches(patches, image_size)), tuple(positive_ints(k, "k")))

    def decided(self, votes: Votes) -> npt.NDArray[np.bool_]:
        """[N], whether the known ballots of each image decide, whatever the others are."""
        done = np.ones(len(votes), dtype=np.bool_)
        for patch in self.patches:
            found = bounds(votes, patch, ties=self.ties)
            for k in self.ks:
                done &= (found.rank_high <= k) | (found.rank_low > k)
                done &= (found.min_k_high <= k) | (found.min_k_low > k)
        return done

    def to_json(self) -> dict[str, Any]:
        return {"patches": [str(patch) for patch in self.patches], "k": list(self.ks), "ties": self.ties}


def schedule(mutants: int) -> list[list[int]]:
    """All mutants in batches: first some spread over the whole image, then those halfway between them."""
    order: list[int] = []
    step = 1 << max(0, (mutants - 1).bit_length())
    while step:
        order += [mutant for mutant in range(0, mutants, step) if mutant % (2 * step) or not order]
        step //= 2
    size = max(1, -(-mutants // _STEPS))
    return [order[start : start + size] for start in range(0, mutants, size)]
