"""A classifier that evaluates a torch network on mutants, in batches across images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from threading import Lock
from typing import Any

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor, nn

from costcert.errors import CostcertError
from costcert.geometry.ablations import Ablation, Kept, Region, Segment
from costcert.geometry.sizes import positive_int, shown
from costcert.models.batch_dependence import probe_images, refuse_batch_dependence
from costcert.models.checkpoints import digest
from costcert.models.classifier import Classifier, Logits, Pending, Pixels
from costcert.models.crops import Crops
from costcert.models.mutants import Mutants
from costcert.models.preprocessing import Preprocessing
from costcert.models.side_by_side import SideBySide, lanes

# Input pixels per batch by default; batches shrink when memory runs out.
_PIXELS_PER_BATCH = {"cpu": 1 << 19, "mps": 1 << 22, "cuda": 1 << 24}
_LARGEST_BATCH = {"cpu": 512, "mps": 2048, "cuda": 8192}
# An evaluation on a CPU has this many batches, so that one image can use several cores; but none with fewer
# input pixels than these, below which the cost of a batch hardly depends on its size.
_BATCHES = 8
_FEWEST_PIXELS = 1 << 16

# An image and a region of it, by number.
Pair = tuple[int, int]

# Random probe images that a new model is evaluated on.
_PROBE_IMAGES = 2


class TorchClassifier(Classifier):
    """A torch network and its view as a classifier.

    Args:
        mutants: the network and its view.
        preprocessing: from images to the network's input.
        name: the model's name in the manifest.
        num_classes: the number of logits; found by a forward pass by default.
        class_names: one per class, for display.
        device: `cpu`, `cuda`, `cuda:1`, `mps`, or `auto` for the fastest one available.
        batch_size: mutants per batch; chosen by device by default, and halved when memory runs out.
        ablation: the ablation it was trained on, if known.
        autocast: compute in half precision where torch considers it safe; float32 by default.
        precision: the type that a network computes in to which `autocast` does not apply.
        weights_digest: if known already; computed from the weights by default.
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
        self.device = resolve_device(device)
        self.mutants = mutants.to(self.device)
        self.preprocessing = preprocessing
        self.image_size = preprocessing.image_size
        self.channels = preprocessing.channels
        self.name = name
        self.batch_size = None if batch_size is None else positive_int(batch_size, "the batch size")
        self.autocast = autocast
        self.ablation = ablation
        dtype = self._half() if autocast else torch.float32
        # A network that takes raw pixels normalises them itself.
        self.takes_normalised = preprocessing.mean is not None
        self.precision = precision or str(dtype).removeprefix("torch.")
        self._digest = weights_digest
        _refuse_batch_statistics(mutants.network, name)
        self.class_names = None if class_names is None else tuple(class_names)
        self.num_classes = self._count_classes() if num_classes is None else num_classes
        if self.class_names is not None and len(self.class_names) != self.num_classes:
            raise CostcertError(
                f"got {len(self.class_names)} class names for {self.num_classes} classes: pass one per "
                "class, or data of these classes"
            )
        refuse_batch_dependence(self, self._probe_images(), self._probe_regions())

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.name}: {self.num_classes} classes, {shown(self.image_size)} input, "
            f"{'grey' if self.channels == 1 else 'RGB'}, hide={self.mutants.view.hide}, on {self.device})"
        )

    def prepare(self, image: Image) -> Pixels:
        return self.preprocessing.prepare(image)

    def refuse(self, regions: Sequence[Kept]) -> None:
        self.mutants.refuse(regions)

    @property
    def preparation(self) -> Preprocessing | None:
        # A subclass that prepares pictures in a way of its own has to say itself what it claims.
        inherited = type(self).prepare is TorchClassifier.prepare and "prepare" not in vars(self)
        return self.preprocessing if inherited and type(self.preprocessing) is Preprocessing else None

    def metadata(self) -> Mapping[str, Any]:
        if self._digest is None:
            self._digest = digest(self.mutants.network)
        networks = self.mutants.networks
        return {
            "name": self.name,
            "digest": self._digest,
            "preprocessing": self.preprocessing.to_json(),
            "hide": self.mutants.view.hide,
            "precision": self.precision,
            **({"networks": networks} if networks > 1 else {}),
        }

    def logits(self, images: Pixels, regions: Sequence[Kept]) -> Logits:
        return self.begin(images, regions).result()

    def begin(self, images: Pixels, regions: Sequence[Kept]) -> Pending:
        return _Evaluation(self, images, regions)

    def in_one_batch(self, images: Pixels, regions: Sequence[Kept]) -> Logits:
        return _Evaluation(self, images, regions, len(images) * len(regions)).result()

    @property
    def calls_at_once(self) -> int:
        # A call has eight batches or more, unless it evaluates few mutants.
        return 1 + -(-lanes() // 8) if self.device.type == "cpu" else 1

    def as_input(self, images: Pixels) -> Tensor:
        """The images as the network gets them."""
        expected = (*self.image_size, self.channels)
        normalised = self.takes_normalised and images.dtype == np.float32
        if (images.dtype != np.uint8 and not normalised) or images.ndim != 4 or images.shape[1:] != expected:
            raise CostcertError(
                f"{self.name} takes uint8 pixels of shape [images, {', '.join(map(str, expected))}], "
                f"got {images.dtype} of shape {list(images.shape)}"
            )
        # A copy, so that no network can modify the caller's images.
        pixels = torch.tensor(np.ascontiguousarray(images), device=self.device)
        if normalised:
            return pixels.permute(0, 3, 1, 2).contiguous()
        return self.preprocessing.normalise(pixels)

    def forward(
        self, mutants: Mutants, pixels: Tensor, regions: Sequence[Kept], pairs: list[Pair]
    ) -> Tensor | None:
        """The logits of these pairs of image and region, or None if they do not fit into memory.

        Args:
            mutants: the classifier's own, or a copy for the calling thread.
        """
        images = torch.tensor([image for image, _ in pairs], device=self.device)
        try:
            with (
                _FULL_PRECISION,
                torch.inference_mode(),
                torch.autocast(self.device.type, dtype=self._half(), enabled=self.autocast),
            ):
                logits: Tensor = mutants(pixels, [regions[region] for _, region in pairs], images)
        except (RuntimeError, MemoryError) as error:
            if not _out_of_memory(error):
                raise
            return None
        return logits

    def use_evaluation_mode(self) -> None:
        """No batch statistics, and nothing random."""
        self.mutants.eval()
        _refuse_training_mode(self.mutants.network, self.name)

    def smaller_batch(self, failed: int) -> int:
        if failed == 1:
            raise self._memory_error()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return failed // 2

    def _memory_error(self) -> CostcertError:
        return CostcertError(
            f"not even one mutant fits into the memory of {self.device}: use a smaller model, or another "
            "device"
        )

    def default_batch_size(self, region: Kept, mutants: int) -> int:
        """Mutants per batch of an evaluation of this many, all like this region."""
        kind = self.device.type if self.device.type in _LARGEST_BATCH else "cpu"
        area = self.mutants.view.area(region)
        largest = min(_power_of_2(max(_PIXELS_PER_BATCH[kind] // area, 8)), _LARGEST_BATCH[kind])
        if kind != "cpu":
            return largest
        return min(largest, max(_power_of_2(max(_FEWEST_PIXELS // area, 8)), -(-mutants // _BATCHES)))

    def _count_classes(self) -> int:
        """The number of logits of a forward pass."""
        self.use_evaluation_mode()
        output = self.forward(
            self.mutants, self.as_input(self._probe_images()), self._probe_regions(), [(0, 0)]
        )
        if output is None:
            raise self._memory_error()
        if output.ndim != 2 or len(output) != 1:
            raise CostcertError(
                f"{self.name} returns shape {list(output.shape)} for one image, expected one row of logits"
            )
        return output.shape[1]

    def _probe_images(self) -> Pixels:
        return probe_images(_PROBE_IMAGES, (*self.image_size, self.channels))

    def _probe_regions(self) -> list[Region]:
        """The entire image, a strip and a block; or regions of the shapes that the view accepts."""
        height, width = self.image_size
        shapes = [(height, width), (height, -(-width // 4)), (-(-height // 2), -(-width // 2))]
        if isinstance(self.mutants.view, Crops):
            shapes = (list(self.mutants.view.shapes) * len(shapes))[: len(shapes)]
        return [
            Region(_probe_segment(index, down, height), _probe_segment(index, across, width))
            for index, (down, across) in enumerate(shapes)
        ]

    def _half(self) -> torch.dtype:
        narrow = self.device.type == "mps" or (
            self.device.type == "cuda" and not torch.cuda.is_bf16_supported()
        )
        return torch.float16 if narrow else torch.bfloat16


class _Evaluation(Pending):
    """Logits of mutants in batches, which may span several images.

    Batches are cut the same way whatever the number of cores, so that logits are the same bytes.

    Args:
        batch_size: instead of the classifier's own.
    """

    def __init__(
        self,
        classifier: TorchClassifier,
        images: Pixels,
        regions: Sequence[Kept],
        batch_size: int | None = None,
    ) -> None:
        self._classifier, self._regions, self._batch_size = classifier, regions, batch_size
        classifier.use_evaluation_mode()
        self._pixels = classifier.as_input(images)
        self._shape = (len(images), len(regions), classifier.num_classes)
        pairs = [
            [(image, region) for image in range(len(images)) for region in group]
            for group in classifier.mutants.view.groups(regions)
        ]
        self._begun = [(each, *self._begin(each)) for each in pairs if each]

    def result(self) -> Logits:
        try:
            return self._collected()
        finally:
            # After an error, or Ctrl-C.
            self.cancel()

    def _collected(self) -> Logits:
        logits = np.empty(self._shape, dtype=np.float32)
        for pairs, batches, outputs in self._begun:
            done = 0
            while done < len(pairs):
                for batch, output in zip(batches, outputs, strict=True):
                    if output is None:
                        self._shrink(len(batch))
                        break
                    self._store(logits, batch, output)
                    done += len(batch)
                else:
                    break
                batches, outputs = self._begin(pairs[done:])
        return logits

    def cancel(self) -> None:
        for _, _, outputs in self._begun:
            if isinstance(outputs, SideBySide):
                outputs.cancel()

    def _begin(self, pairs: list[Pair]) -> tuple[list[list[Pair]], Iterable[Tensor | None]]:
        """Batches of these pairs, and the logits of each; on a CPU they are computed from now on."""
        classifier = self._classifier
        size = (
            self._batch_size
            or classifier.batch_size
            or classifier.default_batch_size(self._regions[pairs[0][1]], len(pairs))
        )
        batches = [pairs[start : start + size] for start in range(0, len(pairs), size)]
        if classifier.device.type == "cpu":
            return batches, SideBySide(self._forward, classifier.mutants, batches)
        return batches, (self._forward(classifier.mutants, batch) for batch in batches)

    def _forward(self, mutants: Mutants, batch: list[Pair]) -> Tensor | None:
        return self._classifier.forward(mutants, self._pixels, self._regions, batch)

    def _shrink(self, failed: int) -> None:
        smaller = self._classifier.smaller_batch(failed)
        if self._batch_size is None:
            self._classifier.batch_size = smaller
        else:
            self._batch_size = smaller

    def _store(self, logits: Logits, batch: list[Pair], output: Tensor) -> None:
        if output.shape != (len(batch), logits.shape[2]):
            raise CostcertError(
                f"{self._classifier.name} returns shape {list(output.shape)} for {len(batch)} mutants, "
                f"expected one row of {logits.shape[2]} logits per mutant"
            )
        rows, columns = (list(column) for column in zip(*batch, strict=True))
        logits[rows, columns] = output.float().cpu().numpy()


class _FullPrecision:
    """No autotuning of algorithms and no reduced precision unless requested.

    These are settings of the process: the first thread that evaluates makes them, the last one undoes them.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._settings = Lock(), 0, ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._settings.callback(
                    torch.set_float32_matmul_precision, torch.get_float32_matmul_precision()
                )
                torch.set_float32_matmul_precision("highest")
                self._settings.enter_context(
                    torch.backends.cudnn.flags(
                        enabled=True, benchmark=False, deterministic=True, allow_tf32=False
                    )
                )
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._settings.close()


_FULL_PRECISION = _FullPrecision()


def _power_of_2(number: int) -> int:
    """The largest one that is not larger."""
    return 1 << (number.bit_length() - 1)


def _probe_segment(index: int, length: int, axis_length: int) -> Segment:
    """A segment that starts at another position for each index, unless it keeps the entire axis."""
    return Segment(0 if length == axis_length else index * axis_length // 3, length)


def resolve_device(device: str | torch.device) -> torch.device:
    """The torch device of this name; `auto` is the fastest one available."""
    if device == "auto":
        device = (
            "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        )
    try:
        resolved = torch.device(device)
    except RuntimeError:
        raise CostcertError(
            f"unknown device {str(device)!r}: use cpu, cuda, mps, or auto for the fastest one available"
        ) from None
    try:
        torch.empty(0, device=resolved)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise CostcertError(
            f"the device {str(device)!r} is not available ({str(error).splitlines()[0]}): use cpu, or auto "
            "for the fastest one available"
        ) from None
    return resolved


def _out_of_memory(error: RuntimeError | MemoryError) -> bool:
    message = str(error).lower()
    return isinstance(error, MemoryError) or any(
        phrase in message for phrase in ("out of memory", "can't allocate memory", "not enough memory")
    )


def _refuse_batch_statistics(network: nn.Module, name: str) -> None:
    for layer, module in network.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
            raise CostcertError(
                f"{name} normalises layer {layer!r} by batch statistics, so its logits for one mutant depend "
                "on the others, and no certificate would hold: train it with running statistics"
            )


def _refuse_training_mode(network: nn.Module, name: str) -> None:
    """Layers that override `train` can stay in training mode after `eval()`."""
    for layer, module in network.named_modules():
        if module.training:
            where = f"its layer {layer!r}" if layer else "it"
            raise CostcertError(
                f"{name} stays in training mode after eval(): {where} (a {type(module).__name__}) may use "
                "batch statistics or random numbers, and no certificate would hold; make eval() switch it to "
                "evaluation mode"
            )
