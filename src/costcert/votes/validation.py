"""Validation of the arrays of `Votes`: each function returns the checked array or raises a `VotesError`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from costcert.errors import VotesError
from costcert.geometry.ablations import Ablation
from costcert.geometry.sizes import ImageSize, positive_int, several, shown
from costcert.votes.defence import Soft

Labels = npt.NDArray[np.int32]

# Within these limits sums of prices stay below 2**62, so no kernel overflows.
LARGEST_CAP = 1 << 30
MOST_CLASSES = 1 << 24
MOST_UNITS = 1 << 60


def as_array(values: Any, name: str) -> npt.NDArray[Any]:
    """An array of anything that is one: numpy arrays, lists, and torch tensors on any device."""
    try:
        if hasattr(values, "detach"):
            values = values.detach().cpu()
            # numpy has no bfloat16.
            values = values.float() if values.is_floating_point() and values.element_size() < 4 else values
        return np.asarray(values)
    except (AttributeError, TypeError, ValueError, RuntimeError):
        raise VotesError(f"{name} must be a rectangular array, got {shortened(values)}") from None


def shortened(value: Any) -> str:
    """What came, for an error message: the value itself if its text is short, otherwise its type."""
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"


def as_integers(values: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    """An array of integers; floats are accepted if all of them are integral."""
    array = as_array(values, name)
    if array.dtype.kind in "iu":
        return array
    if array.dtype.kind != "f":
        raise VotesError(f"{name} must be integers, got {array.dtype}")
    if not np.isfinite(array).all():
        raise VotesError(f"{name} must be integers, got NaN or infinity")
    if (array != np.floor(array)).any():
        fraction = array[array != np.floor(array)].flat[0]
        raise VotesError(f"{name} must be integers, got {fraction}")
    if array.size and np.abs(array).max() >= 2**53:
        raise VotesError(f"{name} must be exact integers, got {np.abs(array).max():g}")
    return array.astype(np.int64)


def as_labels(values: npt.ArrayLike, name: str, num_classes: int) -> Labels:
    """Labels 0 … num_classes-1 as int32; the error names the first invalid one."""
    array = as_integers(values, name)
    if array.size and (array.min() < 0 or array.max() >= num_classes):
        wrong = (array < 0) | (array >= num_classes)
        at = ", ".join(str(i) for i in np.argwhere(wrong)[0])
        raise VotesError(
            f"{name}[{at}] is {array[wrong].flat[0]}, but {num_classes} classes are labelled "
            f"0 to {num_classes - 1}"
        )
    return array.astype(np.int32)


def as_originals(values: Any, images: int) -> npt.NDArray[np.int64]:
    """[images, 2], height and width of pictures."""
    sizes = as_integers(values, "originals").astype(np.int64)
    if sizes.shape != (images, 2) or (sizes.size and sizes.min() < 0):
        raise VotesError(
            f"originals must be the height and width of each of {images} pictures, got "
            f"{shortened(values) if sizes.shape == (images, 2) else f'shape {sizes.shape}'}"
        )
    return sizes


def as_mask(values: npt.ArrayLike, name: str, shape: tuple[int, ...], items: str) -> npt.NDArray[np.bool_]:
    """A boolean mask with one entry for each of these items."""
    mask = as_array(values, name).copy()
    if mask.dtype != np.bool_ or mask.shape != shape:
        raise VotesError(
            f"{name} must be true or false for each of {' x '.join(map(str, shape))} {items}, "
            f"got {mask.dtype} of shape {mask.shape}"
        )
    return mask


def as_distances(
    values: npt.ArrayLike, name: str, shape: tuple[int, int], meaning: str
) -> npt.NDArray[np.float32]:
    """Differences of logits, one per ballot."""
    array = as_array(values, name)
    if array.dtype.kind not in "fiu":
        raise VotesError(f"{name} must be numbers, got {array.dtype}")
    if array.shape != shape:
        raise VotesError(f"got {name} of shape {array.shape} for ballots of shape {shape}")
    with np.errstate(over="ignore"):
        # What is too large for float32 becomes infinite, which is as good.
        array = array.astype(np.float32)
    if np.isnan(array).any() or (array < 0).any():
        raise VotesError(f"{name} must be neither negative nor NaN: they are {meaning}")
    return array


def as_image_ids(values: Any, count: int) -> npt.NDArray[np.str_]:
    """Distinct ids of `count` images; their numbers by default."""
    if values is None:
        return np.arange(count).astype(np.str_)
    ids = as_array(values, "image ids").astype(np.str_)
    if ids.shape != (count,):
        raise VotesError(f"got ballots of {count} images, but image ids of shape {ids.shape}")
    if len(np.unique(ids)) != count:
        raise VotesError("image ids must differ from one another")
    return ids


def class_count(value: Any) -> int:
    """L, the number of classes."""
    classes = positive_int(value, "the number of classes")
    if classes > MOST_CLASSES:
        raise VotesError(f"at most {MOST_CLASSES:,} classes are supported, got {classes:,}")
    return classes


def table_shape(ballots: Labels, ablation: Ablation, image_size: ImageSize) -> tuple[int, int]:
    """(N, B): at least one image, and one ballot for every mutant of the ablation."""
    mutants = ablation.count(image_size)
    if ballots.ndim != 2:
        raise VotesError(f"ballots must have the shape [images, mutants], got {ballots.shape}")
    if ballots.shape[1] != mutants:
        raise VotesError(
            f"got {ballots.shape[1]} ballots per image, but {ablation} on {shown(image_size)} "
            f"makes {mutants}: pass the ablation these votes were made with"
        )
    if len(ballots) == 0:
        raise VotesError("votes need at least one image, got none")
    return len(ballots), mutants


def as_class_names(values: Any, num_classes: int) -> tuple[str, ...] | None:
    """One name per class, or None."""
    if values is None:
        return None
    names = tuple(str(name) for name in several(values))
    if len(names) != num_classes:
        raise VotesError(f"got {len(names)} class names for {num_classes} classes: pass one name per class")
    return names


def as_logits(values: Any) -> npt.NDArray[np.float32]:
    """Finite logits [N, B, L] as float32, the precision in which models give them to `vote`."""
    array = as_array(values, "logits")
    if array.dtype.kind not in "fiu":
        raise VotesError(f"logits must be numbers, got {array.dtype}")
    if array.ndim != 3 or 0 in array.shape:
        raise VotesError(f"logits must have the shape [images, mutants, classes], got {list(array.shape)}")
    with np.errstate(over="ignore"):
        logits = array.astype(np.float32)
    if not np.isfinite(logits).all():
        at = tuple(int(index) for index in np.argwhere(~np.isfinite(logits))[0])
        raise VotesError(
            f"logits{list(at)} is {array[at]}, but logits must be finite in float32: check the network, and "
            "clip probabilities away from 0 before taking their logarithm"
        )
    return logits


def as_soft_ballots(
    labels: Any, units: Any, soft: Soft, num_classes: int, shape: tuple[int, int]
) -> tuple[Labels, npt.NDArray[np.int32]]:
    """Labels and units [N, B, j] of soft ballots, each with at most `cap` units."""
    spread, given = as_labels(labels, "labels", num_classes), as_integers(units, "units")
    expected = (*shape, soft.best)
    if spread.shape != expected or given.shape != expected:
        raise VotesError(
            f"soft ballots must have labels and units of shape {expected}, got {spread.shape} and "
            f"{given.shape}"
        )
    if soft.cap > LARGEST_CAP:
        raise VotesError(f"the cap of a soft ballot must be at most {LARGEST_CAP}, got {soft.cap}")
    if given.min() < 0:
        raise VotesError(f"units must not be negative, got {given.min()}")
    # Single values first: a sum of very large ones could overflow to a small one.
    most = int(given.max())
    if most <= soft.cap:
        most = int(given.sum(axis=2, dtype=np.int64).max())
    if most > soft.cap:
        raise VotesError(f"a mutant gives {most} units, but the cap is {soft.cap}: quantise downwards")
    if shape[1] * num_classes * soft.cap > MOST_UNITS:
        raise VotesError(
            f"{shape[1]} mutants of {soft.cap} units for {num_classes} classes cannot be summed exactly: "
            "use a smaller cap"
        )
    return spread, given.astype(np.int32)
