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
from costcert.geometry.sizes import positive_int
from costcert.models.batch_dependence import refuse_batch_dependence, unlike_pictures
from costcert.models.checkpoints import digest
from costcert.models.classifier import Classifier, Logits, Pixels
from costcert.models.crops import Crops
from costcert.models.mutants import Mutants
from costcert.models.preprocessing import Preprocessing

# Pixels that a batch shows at first; it shrinks when memory runs out.
_SHOWN_AT_ONCE = {"cpu": 1 << 19, "mps": 1 << 22, "cuda": 1 << 24}
_LARGEST_BATCH = {"cpu": 512, "mps": 2048, "cuda": 8192}

# Random pictures that a new model is asked about.
_TRIED = 2


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
        precision: what a network computes in that does not heed `autocast`.
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
        precision: str | None = None,
        weights_digest: str | None = None,
    ) -> None:
        self.device = found_device(device)
        self.mutants = mutants.to(self.device)
        self.preprocessing = preprocessing
        self.image_size = preprocessing.image_size
        self.channels = preprocessing.channels
        self.name = name
        self.batch_size = None if batch_size is None else positive_int(batch_size, "the batch size")
        self.autocast = autocast
        self.ablation = ablation
        computed_in = self._half() if autocast else torch.float32
        self.precision = precision or str(computed_in).removeprefix("torch.")
        self._digest = weights_digest
        _refuse_batch_statistics(mutants.network, name)
        self.class_names = None if class_names is None else tuple(class_names)
        self.num_classes = self._count_classes() if num_classes is None else num_classes
        if self.class_names is not None and len(self.class_names) != self.num_classes:
            raise CostcertError(f"got {len(self.class_names)} class names for {self.num_classes} classes")
        refuse_batch_dependence(self, self._tried_pictures(), self._tried_regions())

    def prepare(self, image: Image) -> Pixels:
        return self.preprocessing.prepare(image)

    def metadata(self) -> Mapping[str, Any]:
        if self._digest is None:
            self._digest = digest(self.mutants.network)
        return {
            "name": self.name,
            "digest": self._digest,
            "preprocessing": self.preprocessing.to_json(),
            "hide": self.mutants.view.hide,
            "precision": self.precision,
        }

    def logits(self, images: Pixels, regions: Sequence[Region]) -> Logits:
        return self._answers(images, regions)

    def in_one_batch(self, images: Pixels, regions: Sequence[Region]) -> Logits:
        """As `logits`, but all mutants that can share a batch do."""
        return self._answers(images, regions, at_once=len(images) * len(regions))

    def _answers(self, images: Pixels, regions: Sequence[Region], at_once: int | None = None) -> Logits:
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
                self._fill(answers, pixels, regions, members, at_once)
        return answers

    def _groups(self, regions: Sequence[Region]) -> list[list[int]]:
        groups: dict[Hashable, list[int]] = {}
        for index, region in enumerate(regions):
            groups.setdefault(self.mutants.view.group(region), []).append(index)
        return list(groups.values())

    def _fill(
        self,
        answers: Logits,
        pixels: Tensor,
        regions: Sequence[Region],
        members: list[int],
        at_once: int | None,
    ) -> None:
        """Ask about these regions of all images, batches running on from one image to the next."""
        pairs = [(image, region) for image in range(len(pixels)) for region in members]
        done = 0
        while done < len(pairs):
            batch = at_once or self.batch_size or self._first_guess(regions[members[0]])
            chosen = pairs[done : done + batch]
            answer = self._ask(pixels, regions, chosen)
            if answer is None:
                smaller = self._shrunk(len(chosen))
                if at_once is None:
                    self.batch_size = smaller
                else:
                    at_once = smaller
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

    def _shrunk(self, tried: int) -> int:
        if tried == 1:
            raise self._no_room()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return tried // 2

    def _no_room(self) -> CostcertError:
        return CostcertError(
            f"not even one mutant fits into the memory of {self.device}: take a smaller model, or another "
            "device"
        )

    def _first_guess(self, region: Region) -> int:
        kind = self.device.type if self.device.type in _LARGEST_BATCH else "cpu"
        fits = max(_SHOWN_AT_ONCE[kind] // self.mutants.view.area(region), 8)
        return min(1 << (fits.bit_length() - 1), _LARGEST_BATCH[kind])

    def _count_classes(self) -> int:
        """By asking about a picture."""
        with self._steady():
            pixels = self.preprocessing.normalise(torch.tensor(self._tried_pictures(), device=self.device))
            answer = self._ask(pixels, self._tried_regions(), [(0, 0)])
        if answer is None:
            raise self._no_room()
        if answer.ndim != 2 or len(answer) != 1:
            raise CostcertError(
                f"{self.name} gives shape {list(answer.shape)} for one picture, expected one row of logits"
            )
        return answer.shape[1]

    def _tried_pictures(self) -> Pixels:
        return unlike_pictures(_TRIED, (*self.image_size, self.channels))

    def _tried_regions(self) -> list[Region]:
        """Everything, a strip and a block; or what the view shows, where it shows only certain shapes."""
        height, width = self.image_size
        shapes = [(height, width), (height, -(-width // 4)), (-(-height // 2), -(-width // 2))]
        if isinstance(self.mutants.view, Crops):
            shapes = (list(self.mutants.view.shapes) * len(shapes))[: len(shapes)]
        return [
            Region(_placed(place, down, height), _placed(place, across, width))
            for place, (down, across) in enumerate(shapes)
        ]

    @contextmanager
    def _steady(self) -> Iterator[None]:
        """The same answers on every run: no statistics of the batch, no choice of algorithm by stopwatch, no
        shortened floats unless asked for."""
        self.mutants.eval()
        _refuse_training_mode(self.mutants.network, self.name)
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


def _placed(place: int, length: int, axis_length: int) -> Segment:
    """A different start for each place, but where the whole axis is kept."""
    return Segment(0 if length == axis_length else place * axis_length // 3, length)


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


def _refuse_batch_statistics(network: nn.Module, name: str) -> None:
    for layer, module in network.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
            raise CostcertError(
                f"{name} normalises {layer!r} over the batch, so what it says about one mutant depends on "
                "the others, and no certificate would hold: train it with running statistics"
            )


def _refuse_training_mode(network: nn.Module, name: str) -> None:
    """Layers that override `train` can stay in training mode whatever they are told."""
    for layer, module in network.named_modules():
        if module.training:
            where = f"its layer {layer!r}" if layer else "it"
            raise CostcertError(
                f"{name} stays in training mode after eval(): {where} (a {type(module).__name__}) may look "
                "at the batch or at random numbers, and no certificate would hold; let eval() switch it over"
            )
