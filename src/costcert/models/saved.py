"""The folder of a trained model: `model.safetensors`, and `model.json` with everything that voting needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from safetensors.torch import save_file
from torch import nn

from costcert.errors import StoreError
from costcert.models.architectures import build
from costcert.models.checkpoints import digest, load_weights, read_weights
from costcert.models.mutants import Mutants
from costcert.models.preprocessing import Preprocessing
from costcert.store.files import atomic_write, read_json, write_json
from costcert.store.locations import Location, locate

WEIGHTS, CARD = "model.safetensors", "model.json"
FORMAT, VERSION = "costcert model", 1


@dataclass(frozen=True)
class ModelCard:
    """The settings of a trained network.

    Args:
        architecture: `timm:NAME` or `strip:SIZE`.
        ablation: the spelling of the ablation it was trained on.
        hide: how pixels are hidden.
        training: the training recipe, for information only.
    """

    architecture: str
    num_classes: int
    preprocessing: Preprocessing
    ablation: str
    hide: str
    class_names: tuple[str, ...] | None = None
    training: Mapping[str, Any] = field(default_factory=dict)


class Saved(NamedTuple):
    """A trained model as loaded; `digest` is that of its weights."""

    mutants: Mutants
    card: ModelCard
    digest: str


def save_model(folder: str | Location, network: nn.Module, card: ModelCard) -> None:
    """Write both files, each atomically; the card holds the digest of the weights, which loading compares."""
    folder = locate(folder)
    weights = {name: v.detach().cpu().clone().contiguous() for name, v in network.state_dict().items()}
    with atomic_write(folder / WEIGHTS) as temporary:
        save_file(weights, temporary, metadata={"format": "pt"})
    write_json(
        folder / CARD,
        {
            "format": FORMAT,
            "version": VERSION,
            "architecture": card.architecture,
            "num_classes": card.num_classes,
            "class_names": None if card.class_names is None else list(card.class_names),
            "image_size": list(card.preprocessing.image_size),
            "channels": card.preprocessing.channels,
            "preprocessing": card.preprocessing.to_json(),
            "ablation": card.ablation,
            "hide": card.hide,
            "weights": digest(network),
            "training": dict(card.training),
        },
    )


def read_card(folder: str | Location) -> ModelCard:
    """The card of a trained model's folder; no weights are read."""
    folder = locate(folder)
    return _card(_read(folder), folder)


def load_saved(folder: str | Location, *, hide: str | None = None) -> Saved:
    """The trained model in this folder; `hide` replaces the way of hiding it was trained with."""
    folder = locate(folder)
    content = _read(folder)
    card = _card(content, folder)
    if hide not in (None, card.hide) and "crop" in (hide, card.hide):
        raise StoreError(
            f"{folder} was trained with hide {card.hide!r}, which cannot become {hide!r}: leave hide out"
        )
    mutants, _ = build(
        card.architecture,
        num_classes=card.num_classes,
        hide=hide or card.hide,
        ablation=card.ablation,
        preprocessing=card.preprocessing,
    )
    load_weights(mutants.network, read_weights(folder / WEIGHTS), str(folder / WEIGHTS))
    found = digest(mutants.network)
    if found != content.get("weights"):
        raise StoreError(
            f"{folder / WEIGHTS} does not hold the weights that {CARD} was written for: the folder mixes two "
            "models or is damaged; copy or train the model again"
        )
    return Saved(mutants, card, found)


def _read(folder: Location) -> dict[str, Any]:
    path = folder / CARD
    if not path.is_file():
        raise StoreError(f"{folder} holds no {CARD}: pass the folder that costcert train wrote")
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise StoreError(
            f"{path} does not describe a trained model of costcert: pass a folder that costcert train wrote"
        )
    if content.get("version") != VERSION:
        raise StoreError(
            f"{path} has format version {content.get('version')!r}, this costcert reads {VERSION}: install a "
            "version that reads it"
        )
    return content


def _card(content: Mapping[str, Any], folder: Location) -> ModelCard:
    try:
        names = content["class_names"]
        return ModelCard(
            architecture=str(content["architecture"]),
            num_classes=int(content["num_classes"]),
            preprocessing=Preprocessing.from_json(content["preprocessing"]),
            ablation=str(content["ablation"]),
            hide=str(content["hide"]),
            class_names=None if names is None else tuple(str(name) for name in names),
            training=dict(content.get("training") or {}),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{folder / CARD} has a missing or invalid field: {error}") from None
