"""Asks a network about mutants, many at a time, of many images together."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor, nn

from costcert.errors import CostcertError
from costcert.geometry.ablations import Ablation, Region, Segment
from costcert.geometry.sizes import whole
from costcert.models.checkpoints import digest
from costcert.models.classifier import Classifier, Logits, Pixels
from costcert.models.mutants import Mutants
from costcert.models.preprocessing import Preprocessing

# Pixels that a batch shows at first; it shrinks when memory runs out.
_SHOWN_AT_ONCE = {"cpu": 1 << 19, "mps": 1 << 22, "cuda": 1 << 24}
_LARGEST_BATCH = {"cpu": 512, "mps": 2048, "cuda": 8192}

# Share of the largest logit that may be rounding, half precision included; neighbours that matter move more.
_ROUNDING = 0.02


class TorchClassifier(Classifier):
    """A network that sees mutants, as a classifier.

    Args:
        mutants: the network and its view.
        preprocessing: what pictures go through.
        name: for the manifest.
        num_classes: the length of the logits; asked of the network by default.
        class_names: for people.
        device: `cpu`, `cuda`, `cuda:1`, `mps`, or `auto` for the fastest that is there.
        batch_size: mutants at once; by default as many as suit the device, and fewer when memory runs out.
        ablation: what it was trained to see, where that is known.
        autocast: compute in half precision where torch thinks it safe; float32 throughout by default.
        weights_digest: where it is known; computed from the weights by default.
    """

    def __init__(
        self,
        mutants: Mutants,
        preprocessing: Preprocessing,
        *,
        name: str,
        num_classes: int | None = None,
        class_names: Sequence[str] | None = None,
        device: str | torch.device = "cpu",
        batch_size: int | None = None,
        autocast: bool = False,
        ablation: Ablation | None = None,
        weights_digest: str | None = None,
    ) -> None:
        self.device = found_device(device)
        self.mutants = mutants.to(self.device)
        self.preprocessing = preprocessing
        self.image_size = preprocessing.image_size
        self.channels = preprocessing.channels
        self.name = name
        self.batch_size = None if batch_size is None else whole(batch_size, "the batch size")
        self.autocast = autocast
        self.ablation = ablation
        self._digest = weights_digest
        _refuse_batch_statistics(mutants, name)
        self.class_names = None if class_names is None else tuple(class_names)
        self.num_classes = self._try_out() if num_classes is None else num_classes
        if self.class_names is not None and len(self.class_names) != self.num_classes:
            raise CostcertError(f"got {len(self.class_names)} class names for {self.num_classes} classes")

    def prepare(self, image: Image) -> Pixels:
        return self.preprocessing.prepare(image)

    def about(self) -> Mapping[str, Any]:
        if self._digest is None:
            self._digest = digest(self.mutants.network)
        return {
            "name": self.name,
            "digest": self._digest,
            "preprocessing": self.preprocessing.to_json(),
            "hide": self.mutants.view.hide,
            "precision": str(self._half() if self.autocast else torch.float32).removeprefix("torch."),
        }

    def logits(self, images: Pixels, regions: Sequence[Region]) -> Logits:
        expected = (*self.image_size, self.channels)
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != expected:
            raise CostcertError(
                f"{self.name} takes whole pixels (uint8) of shape [images, {', '.join(map(str, expected))}], "
                f"got {images.dtype} of shape {list(images.shape)}"
            )
        answers = np.empty((len(images), len(regions), self.num_classes), dtype=np.float32)
        with self._steady():
            # A copy, so that nothing that happens from here on can reach the caller's images.
            pixels = self.preprocessing.normalise(
                torch.tensor(np.ascontiguousarray(images), device=self.device)
            )
            for members in self._groups(regions):
                self._fill(answers, pixels, regions, members)
        return answers

    def _groups(self, regions: Sequence[Region]) -> list[list[int]]:
        groups: dict[Hashable, list[int]] = {}
        for index, region in enumerate(regions):
            groups.setdefault(self.mutants.view.group(region), []).append(index)
        return list(groups.values())

    def _fill(self, answers: Logits, pixels: Tensor, regions: Sequence[Region], members: list[int]) -> None:
        """Ask about these regions of all images, batches running on from one image to the next."""
        pairs = [(image, region) for image in range(len(pixels)) for region in members]
        done = 0
        while done < len(pairs):
            batch = self.batch_size or self._first_guess(regions[members[0]])
            chosen = pairs[done : done + batch]
            answer = self._ask(pixels, regions, chosen)
            if answer is None:
                self._shrink(len(chosen))
                continue
            if answer.shape != (len(chosen), self.num_classes):
                raise CostcertError(
                    f"{self.name} gives answers of shape {list(answer.shape)} for {len(chosen)} mutants, "
                    f"expected one row of {self.num_classes} logits for each"
                )
            images, places = (list(column) for column in zip(*chosen, strict=True))
            answers[images, places] = answer.float().cpu().numpy()
            done += len(chosen)

    def _ask(self, pixels: Tensor, regions: Sequence[Region], pairs: list[tuple[int, int]]) -> Tensor | None:
        """The logits of these mutants, or nothing if they do not fit into memory."""
        images = torch.tensor([image for image, _ in pairs], device=self.device)
        try:
            answer: Tensor = self.mutants(pixels, [regions[place] for _, place in pairs], images)
        except (RuntimeError, MemoryError) as error:
            if not _out_of_memory(error):
                raise
            return None
        return answer

    def _shrink(self, tried: int) -> None:
        if tried == 1:
            raise self._no_room()
        self.batch_size = tried // 2
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _no_room(self) -> CostcertError:
        return CostcertError(
            f"not even one mutant fits into the memory of {self.device}: take a smaller model, or another "
            "device"
        )

    def _first_guess(self, region: Region) -> int:
        kind = self.device.type if self.device.type in _LARGEST_BATCH else "cpu"
        fits = max(_SHOWN_AT_ONCE[kind] // self.mutants.view.area(region), 8)
        return min(1 << (fits.bit_length() - 1), _LARGEST_BATCH[kind])

    def _try_out(self) -> int:
        """The number of classes, by asking about a black picture, alone and beside a white one.

        What it says must be the same but for rounding: a network that looks at its neighbours, as batch
        statistics do, would let a patch on one mutant change another, and no certificate would hold.
        """
        height, width = self.image_size
        shades = torch.tensor([0, 255], dtype=torch.uint8, device=self.device)
        pictures = shades[:, None, None, None].expand(2, height, width, self.channels)
        everything = [Region(Segment(0, height), Segment(0, width))]
        with self._steady():
            pixels = self.preprocessing.normalise(pictures)
            alone = self._ask(pixels, everything, [(0, 0)])
            beside = self._ask(pixels, everything, [(0, 0), (1, 0)])
        if alone is None:
            raise self._no_room()
        if alone.ndim != 2 or len(alone) != 1:
            raise CostcertError(
                f"{self.name} gives shape {list(alone.shape)} for one picture, expected one row of logits"
            )
        if beside is not None and (beside[0] - alone[0]).abs().max() > _ROUNDING * (1 + alone.abs().max()):
            raise CostcertError(
                f"{self.name} says something else about a picture when another is beside it, so no "
                "certificate would hold: it must not use statistics of the batch"
            )
        return alone.shape[1]

    @contextmanager
    def _steady(self) -> Iterator[None]:
        """The same answers on every run: no statistics of the batch, no choice of algorithm by stopwatch, no
        shortened floats unless asked for."""
        self.mutants.eval()
        precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            with (
                torch.inference_mode(),
                torch.backends.cudnn.flags(
                    enabled=True, benchmark=False, deterministic=True, allow_tf32=False
                ),
                torch.autocast(self.device.type, dtype=self._half(), enabled=self.autocast),
            ):
                yield
        finally:
            torch.set_float32_matmul_precision(precision)

    def _half(self) -> torch.dtype:
        narrow = self.device.type == "mps" or (
            self.device.type == "cuda" and not torch.cuda.is_bf16_supported()
        )
        return torch.float16 if narrow else torch.bfloat16


def found_device(device: str | torch.device) -> torch.device:
    """The device of this name if it is there."""
    if device == "auto":
        device = (
            "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        )
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise CostcertError(
            f"the device {str(device)!r} is not there ({str(error).splitlines()[0]}): use cpu, or auto for "
            "the fastest that is"
        ) from None
    return found


def _out_of_memory(error: RuntimeError | MemoryError) -> bool:
    words = str(error).lower()
    return isinstance(error, MemoryError) or any(
        sign in words for sign in ("out of memory", "can't allocate memory", "not enough memory")
    )


def _refuse_batch_statistics(mutants: nn.Module, name: str) -> None:
    for layer, module in mutants.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
            raise CostcertError(
                f"{name} normalises {layer!r} over the batch, so what it says about one mutant depends on "
                "the others, and no certificate would hold: train it with running statistics"
            )
