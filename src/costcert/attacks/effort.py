"""The effort of an attack."""

from __future__ import annotations

from dataclasses import dataclass, replace

from costcert.geometry.sizes import positive_int


@dataclass(frozen=True)
class Effort:
    """The effort of an attack per image.

    Args:
        places: positions at which the patch is tried: half of them the worst by price, half at random. Each
            gets a short run, with a fifth of the steps.
        restarts: full runs at the best of these positions, with alternating objectives.
        steps: gradient steps of a full run; 0 means random pixels only.
        random: patches of random pixels.
        thorough: spend the same effort on certified images, where nothing can be found; otherwise they get
            one position, one random patch and one short run, as a check of the proof.
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
        """The effort for certified images."""
        if self.thorough:
            return self
        return replace(self, places=1, restarts=0, random=min(self.random, 1))
