"""A universal patch: the same pixels on many images, at one position or at any."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from costcert.attacks.attempts import Attempt, best_of, judged
from costcert.attacks.judging import Judge
from costcert.attacks.optimizer import Batch, PatchOptimizer, mutants_at_once, normalised, step_sizes
from costcert.attacks.placements import Placement, Placements, Places, Prices, prices_of
from costcert.attacks.results import UNIVERSAL
from costcert.errors import StoreError
from costcert.models.classifier import Pixels
from costcert.models.side_by_side import one_thread
from costcert.store.files import atomic_write
from costcert.store.locations import Location
from costcert.store.parquet import read_npz

# The most images in one step.
_IMAGES_PER_STEP = 32
# Steps, as a multiple of those of a patch for a single image.
_STEPS_FACTOR = 5
# Positions that are compared for a patch with a fixed position.
_COMPARED = 64
_MOMENTUM = 0.9


@dataclass(frozen=True, eq=False)
class UniversalPatch:
    """The pixels of a patch for many images.

    Args:
        pixels: [h, w, C].
        places: its fixed position; None if it is tried at random ones.
    """

    pixels: Pixels
    places: Places | None

    def on(self, image: Pixels, placements: Placements, places: Places) -> Pixels:
        """The image with the patch at this position."""
        source = placements.sources(places)
        flat = self.pixels.reshape(-1, self.pixels.shape[2])
        return np.where((source >= 0)[..., None], flat[source], image)

    def tried(
        self,
        judge: Judge,
        placements: Placements,
        prices: Prices,
        image: Pixels,
        count: int,
        rng: np.random.Generator,
    ) -> Attempt | None:
        """The attempt at its fixed position, or the best of `count` random positions."""

        def trials() -> Iterator[tuple[Placement, Pixels]]:
            for _ in range(count if self.places is None else 1):
                places = self.places or placements.draw(rng)
                placement = prices.placement(placements, places)
                if len(placement.touched):
                    yield placement, self.on(image, placements, places)[None]

        return best_of(judged(judge, placements, prices.votes, prices.image, trials()))

    def save(self, folder: Location) -> None:
        places = np.array([] if self.places is None else self.places, dtype=np.int64).reshape(-1, 2)
        with atomic_write(folder / UNIVERSAL) as temporary, temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, pixels=self.pixels, places=places)

    @classmethod
    def load(cls, folder: Location) -> UniversalPatch:
        arrays = read_npz(folder / UNIVERSAL)
        if not {"pixels", "places"} <= set(arrays) or arrays["pixels"].dtype != np.uint8:
            raise StoreError(
                f"{folder / UNIVERSAL} does not hold a universal patch: remove it, and it is made again"
            )
        places = tuple((int(top), int(left)) for top, left in arrays["places"])
        return cls(arrays["pixels"], places or None)


@one_thread()
def universal_patch(
    optimizer: PatchOptimizer, kind: str, images: npt.NDArray[np.int64], steps: int, rng: np.random.Generator
) -> UniversalPatch:
    """Optimise one patch on all these images."""
    placements, model = optimizer.placements, optimizer.model
    shape = (placements.single.height, placements.single.width, optimizer.clean.shape[3])
    fixed = _common_place(optimizer, images, rng) if kind == "fixed" else None
    patch = torch.tensor(rng.uniform(0, 255, shape), dtype=torch.float32, device=model.device)
    direction = torch.zeros_like(patch)
    most = mutants_at_once(model, placements) // max(1, optimizer.judge.touched.delta)
    together = max(1, min(_IMAGES_PER_STEP, len(images), most))
    for size in step_sizes(_STEPS_FACTOR * steps):
        chosen = rng.choice(images, together, replace=False)
        attempts = [_pasted(optimizer, int(image), fixed or placements.draw(rng)) for image in chosen]
        attempts = [attempt for attempt in attempts if len(attempt.placement.touched)]
        if not attempts:
            continue
        batch = Batch(optimizer, attempts)
        source = np.stack([placements.sources(each.placement.places) for each in attempts]).clip(min=0)
        patch.requires_grad_()
        pixels = patch.reshape(-1, shape[2])[torch.as_tensor(source, device=model.device)]
        logits, _ = optimizer.logits(pixels, batch)
        loss, _ = optimizer.loss(logits, batch)
        gradient = optimizer.gradient(loss.sum(), patch)
        direction = _MOMENTUM * direction + normalised(gradient[None])[0]
        patch = (patch.detach() - size * direction.sign()).clamp(0, 255)
    return UniversalPatch(patch.round().to(torch.uint8).cpu().numpy(), fixed)


def _pasted(optimizer: PatchOptimizer, image: int, places: Places) -> Attempt:
    placement = prices_of(optimizer.votes, image, optimizer.k).placement(optimizer.placements, places)
    return Attempt(image, placement, optimizer.clean[image])


def _common_place(
    optimizer: PatchOptimizer, images: npt.NDArray[np.int64], rng: np.random.Generator
) -> Places:
    """The best of some random positions by price, and the most central of equal ones."""
    placements = optimizer.placements
    middle = (np.array(placements.canvas) - (placements.single.height, placements.single.width)) / 2
    prices = [prices_of(optimizer.votes, int(image), optimizer.k) for image in images]

    def worth(places: Places) -> tuple[int, float]:
        touched = placements.touched(places)
        lifted = sum(each.lifted(touched)[0] for each in prices)
        return lifted, -float(np.abs(np.array(places) - middle).sum())

    return max((placements.draw(rng) for _ in range(_COMPARED)), key=worth)
