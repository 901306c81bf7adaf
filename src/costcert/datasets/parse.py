"""Datasets by their spelling on the command line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import entry_points

from costcert.datasets.base import Dataset
from costcert.datasets.folder import folder
from costcert.datasets.hub import hub
from costcert.datasets.idx import idx
from costcert.datasets.imagenet import imagenet
from costcert.datasets.npz import npz
from costcert.datasets.sample import sample
from costcert.datasets.torchvision_names import torchvision
from costcert.errors import SpellingError, nearest
from costcert.store.locations import Url, locate

SPELLINGS = "folder:PATH, imagenet:PATH, npz:FILE, idx:FOLDER, torchvision:NAME[@FOLDER], hf:NAME, sample"


def parse_dataset(text: str, split: str = "test", *, download: bool = False) -> Dataset:
    """The dataset spelled `folder:val`, `npz:s3://bucket/test.npz`, `torchvision:CIFAR100@data`, `sample` …

    An installed package adds a kind with an entry point in the group `costcert.datasets`: a function of the
    text after the colon and the split.

    Args:
        split: which split to use; datasets without splits ignore it.
        download: whether torchvision and the hub may download missing data.
    """
    for given in (text, split):
        if not isinstance(given, str):
            raise SpellingError(f"expected the spelling of data, such as {SPELLINGS}, got {given!r}")
    kinds: dict[str, Callable[[str, str], Dataset]] = {
        "folder": folder,
        "imagenet": imagenet,
        "npz": npz,
        "idx": idx,
        "torchvision": partial(torchvision, download=download),
        "hf": partial(hub, download=download),
        "sample": sample,
    }
    kind, _, rest = str(text).partition(":")
    if kind in kinds and (rest or kind == "sample"):
        return kinds[kind](rest, split)
    plugins = {point.name: point for point in entry_points(group="costcert.datasets")}
    if kind in plugins:
        dataset: Dataset = plugins[kind].load()(rest, split)
        return dataset
    path = locate(text)
    # A URL is judged by its suffix: a hint is not worth a request to a store.
    is_folder = path.suffix != ".npz" if isinstance(path, Url) else path.is_dir()
    if isinstance(path, Url) or path.exists():
        guess = f" (did you mean '{'folder' if is_folder else 'npz'}:{text}'?)"
    else:
        guess = nearest(kind, [*kinds, *plugins]) if kind not in kinds else f" (nothing follows {kind}:)"
    raise SpellingError(f"unknown data {text!r}{guess}: write one of {SPELLINGS}")
