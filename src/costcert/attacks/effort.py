"""How hard an attacker tries."""

from __future__ import annotations

from dataclasses import dataclass, replace

from costcert.geometry.sizes import positive_int


@dataclass(frozen=True)
class Effort:
    """How hard to try.

    Args:
        places: where the patch is tried on each image: the worst places by price, and as many by chance. Each
            gets a short run, of a fifth of the steps.
        restarts: full runs at the best of them, objectives taking turns.
        steps: of each run; none means random pixels only.
        random: patches of random pixels for each image.
        thorough: as hard on certified images, where nothing can be found, as on the others; otherwise they
            get one place, one random patch and one short run there, as a check on the proof.
    """

    places: int = 32
    restarts: int = 4
    steps: int = 40
    random: int = 32
    thorough: bool = False

    def __post_init__(self) -> None:
        positive_int(self.places, "the number of places")
        positive_int(self.restarts, "the number of restarts", at_least=0)
        positive_int(self.steps, "the number of steps", at_least=0)
        positive_int(self.random, "the number of random patches", at_least=0)

    def on_certified(self) -> Effort:
        """What is spent where nothing can be found."""
        if self.thorough:
            return self
        return replace(self, places=1, restarts=0, random=min(self.random, 1))
