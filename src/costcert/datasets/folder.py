"""`folder:PATH`: one subfolder per class, as torchvision's ImageFolder reads them."""

from __future__ import annotations

from pathlib import Path

from costcert.datasets.base import Dataset
from costcert.datasets.files import ENDINGS, FileDataset, images_below, subfolders
from costcert.errors import CostcertError

_SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing"}


def folder(path: str, split: str) -> Dataset:
    """Classes are the subfolders, sorted; of a folder that holds splits, the one asked for is taken."""
    root, name = Path(path), f"folder:{Path(path).resolve().name}"
    classes = subfolders(root)
    if classes and set(classes) <= _SPLITS:
        if split not in classes:
            raise CostcertError(
                f"{root} holds {', '.join(classes)} but no {split!r}: name one, as in "
                f"folder:{root / classes[0]}"
            )
        root, chosen = root / split, split
        classes = subfolders(root)
    else:
        chosen = None
    found = [(path, label) for label, each in enumerate(classes) for path in images_below(root / each)]
    if not found:
        raise CostcertError(
            f"{root} holds no images in subfolders: expected one folder per class, with files that end in "
            f"{', '.join(ENDINGS)}"
        )
    ids = [path.relative_to(root).as_posix() for path, _ in found]
    return FileDataset(name, root, ids, [label for _, label in found], class_names=classes, split=chosen)
