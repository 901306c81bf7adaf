"""`hf:NAME`: datasets of the Hugging Face hub, read with the package `datasets`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any

from costcert.datasets.base import Dataset, reading
from costcert.errors import CostcertError

if TYPE_CHECKING:
    from PIL.Image import Image


class HubDataset(Dataset):
    """The first column of images and the first column of class labels; ids are row numbers."""

    def __init__(self, name: str, table: Any, split: str) -> None:
        kinds = {column: type(feature).__name__ for column, feature in table.features.items()}
        columns = [
            next((column for column, kind in kinds.items() if kind == wanted), None)
            for wanted in ("Image", "ClassLabel")
        ]
        if None in columns:
            raise CostcertError(
                f"hf:{name} needs a column of images and one of class labels, got "
                f"{', '.join(f'{column} ({kind})' for column, kind in kinds.items())}"
            )
        self._image, label = columns
        ids = [f"{split}-{index:05d}" for index in range(len(table))]
        super().__init__(
            f"hf:{name}", ids, list(table[label]), class_names=table.features[label].names, split=split
        )
        self._table = table

    def image(self, index: int) -> Image:
        with reading(f"{self.ids[index]} of {self.name}"):
            image: Image = self._table[index][self._image]
            image.load()
            return image


def hub(name: str, split: str, *, download: bool = False) -> Dataset:
    """A dataset of the hub's local cache; it is downloaded only if `download` is set."""
    try:
        datasets = import_module("datasets")
    except ModuleNotFoundError:
        raise CostcertError(f"hf:{name} needs the package datasets: pip install datasets") from None
    try:
        with nullcontext() if download else _offline():
            table = datasets.load_dataset(name, split=split)
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        hint = "" if download else "; if it was never downloaded, pass --download"
        raise CostcertError(f"hf:{name} ({split}) cannot be loaded: {reason}{hint}") from error
    return HubDataset(name, table, split)


@contextmanager
def _offline() -> Iterator[None]:
    """Sets HF_HUB_OFFLINE in both packages: they read the environment variable only when imported."""
    settings = [import_module(name) for name in ("datasets.config", "huggingface_hub.constants")]
    before = [module.HF_HUB_OFFLINE for module in settings]
    for module in settings:
        vars(module)["HF_HUB_OFFLINE"] = True
    try:
        yield
    finally:
        for module, value in zip(settings, before, strict=True):
            vars(module)["HF_HUB_OFFLINE"] = value
