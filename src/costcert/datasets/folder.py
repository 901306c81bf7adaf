"""`folder:PATH`: one subfolder per class, as torchvision's ImageFolder reads them."""

from __future__ import annotations

from costcert.datasets.base import Dataset
from costcert.datasets.files import ENDINGS, FileDataset, images_below, subfolders
from costcert.errors import CostcertError
from costcert.store.locations import locate

_SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing"}


def folder(path: str, split: str) -> Dataset:
    """Classes are the subfolders, sorted; if these are named like splits, the requested split is used."""
    root = locate(path)
    name = f"folder:{root.resolve().name}"
    classes = subfolders(root)
    if classes and set(classes) <= _SPLITS:
        if split not in classes:
            raise CostcertError(
                f"{root} holds {', '.join(classes)}, but not {split!r}: name one, as in "
                f"folder:{root / classes[0]}"
            )
        root, chosen = root / split, split
        classes = subfolders(root)
    else:
        chosen = None
    number = {each: label for label, each in enumerate(classes)}
    found = [each for each in images_below(root) if each.folder in number]
    if not found:
        raise CostcertError(
            f"{root} holds no images in subfolders: expected one folder per class, with files that end in "
            f"{', '.join(ENDINGS)}"
        )
    labels = [number[each.folder] for each in found]
    return FileDataset(name, root, found, labels, class_names=classes, split=chosen)
