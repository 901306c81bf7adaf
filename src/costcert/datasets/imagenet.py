"""`imagenet:PATH`: images of ImageNet-1k, with labels in the usual order (sorted WordNet ids).

The folder holds one subfolder per WordNet id (n01440764 …), or some of them for a part of ImageNet; or it
holds all images, with Kaggle's LOC_val_solution.csv in it or above it. The ground-truth file of the original
development kit is not read: it numbers the classes in another order.
"""

from __future__ import annotations

import csv
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from costcert.datasets.base import Dataset
from costcert.datasets.files import FileDataset, images_below, subfolders
from costcert.errors import CostcertError
from costcert.store.locations import Location, locate

_SOLUTION = "LOC_val_solution.csv"


def imagenet(path: str, split: str) -> Dataset:
    """The images below PATH, or below PATH/train or PATH/val if these exist."""
    part = "train" if split == "train" else "val"
    given = locate(path)
    root = given / part if (given / part).is_dir() else given
    synsets = _listed("imagenet_synsets.txt")
    number = {synset: label for label, synset in enumerate(synsets)}
    folders, found = subfolders(root), list(images_below(root))
    if folders:
        unknown = [each for each in folders if each not in number]
        if unknown:
            raise CostcertError(
                f"{root / unknown[0]} is not the name of a class of ImageNet-1k, such as n01440764: "
                "use folder: for other classes"
            )
        found = [each for each in found if each.folder]
        labels = [number[each.folder] for each in found]
    else:
        truth = _solution(root)
        try:
            labels = [number[truth[PurePosixPath(each.id).stem]] for each in found]
        except KeyError as error:
            raise CostcertError(f"{_SOLUTION} of {root} does not list the image {error}") from None
    if not found:
        raise CostcertError(f"{root} holds no images of ImageNet: expected folders such as n01440764")
    names = dict(line.split("\t", 1) for line in _listed("imagenet_synset_to_lemma.txt"))
    return FileDataset(
        "imagenet",
        root,
        found,
        labels,
        class_names=[names[synset] for synset in synsets],
        split=None if root == given else part,
    )


def _listed(name: str) -> list[str]:
    """The lines of a file that timm ships; read without importing timm, which takes seconds."""
    timm = find_spec("timm")
    if timm is None or timm.origin is None:
        raise CostcertError("imagenet: needs timm, which lists the classes: pip install 'costcert[models]'")
    text = (Path(timm.origin).parent / "data" / "_info" / name).read_text(encoding="utf-8")
    return text.splitlines()


def _solution(root: Location) -> dict[str, str]:
    """WordNet id by image name, from lines such as `ILSVRC2012_val_00048981,n03995372 85 1 499 272`."""
    for folder in (root, *root.resolve().parents[:4]):
        if (folder / _SOLUTION).is_file():
            lines = (folder / _SOLUTION).read_text(encoding="utf-8").splitlines()
            rows = [row for row in csv.reader(lines) if len(row) == 2 and row[1].startswith("n")]
            return {image: boxes.split()[0] for image, boxes in rows}
    raise CostcertError(
        f"{root} holds no folders such as n01440764 and no {_SOLUTION}: sort the images into one folder "
        "per class"
    )
