"""Joins trained strip networks of several families into one model, whose votes can be pooled.

    python tools/merge_strips.py columns-2 rows-2 columns-and-rows-3 --out merged

Each shape of strip keeps the layers it was trained with, so a merged network casts the votes of its parts.
A network of columns alone knows one coordinate and a pooled one two: the missing one gets weights of zero.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from costcert.geometry.ablations import Columns, Pooled, Rows, parse_ablation
from costcert.models.architectures import build
from costcert.models.saved import ModelCard, Saved, load_saved, save_model
from costcert.models.strips import PooledStripNet, StripFeatures, StripNet


def main() -> None:
    parser = argparse.ArgumentParser(description="Joins strip networks of several families.")
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    parts = [load_saved(folder) for folder in options.models]
    first = parts[0].card
    for folder, part in zip(options.models, parts, strict=True):
        for setting in ("architecture", "num_classes", "class_names", "preprocessing", "hide"):
            if getattr(part.card, setting) != getattr(first, setting):
                raise SystemExit(f"{folder} differs from {options.models[0]} in its {setting}")
    families = "+".join(part.card.ablation for part in parts)
    merged = build(
        first.architecture,
        num_classes=first.num_classes,
        ablation=families,
        preprocessing=first.preprocessing,
    ).mutants.network
    if not isinstance(merged, PooledStripNet):
        raise SystemExit(f"{families} are strips of one shape: there is nothing to merge")
    seen = set()
    for part in parts:
        for key, features, head in shapes(part):
            if key in seen:
                raise SystemExit(f"two of these models have strips of {key} pixels")
            seen.add(key)
            merged.by_shape[key].load_state_dict(with_both_coordinates(features, part.card.ablation))
            merged.heads[key].load_state_dict(head.state_dict())
    names = " ".join(folder.name for folder in options.models)
    training = {
        "command": f"python tools/merge_strips.py {names} --out {options.out.name}",
        "parts": [dict(part.card.training) for part in parts],
    }
    card = ModelCard(
        first.architecture,
        first.num_classes,
        first.preprocessing,
        families,
        first.hide,
        first.class_names,
        training,
    )
    save_model(options.out, merged, card)
    print(f"{options.out}: strips of {', '.join(sorted(seen))} pixels")


def shapes(part: Saved) -> Iterator[tuple[str, nn.Module, nn.Module]]:
    """For each shape of strip its spelling, its layers and its last layer."""
    network = part.mutants.network
    if isinstance(network, PooledStripNet):
        for key in network.by_shape:
            yield key, network.by_shape[key], network.heads[key]
    elif isinstance(network, StripNet):
        region = parse_ablation(part.card.ablation).regions(part.card.preprocessing.image_size)[0]
        features = StripFeatures.__new__(StripFeatures)
        nn.Module.__init__(features)
        for name in ("stem", "blocks", "pool"):
            setattr(features, name, getattr(network, name))
        yield f"{region.rows.length}x{region.columns.length}", features, network.head
    else:
        raise SystemExit(f"{part.card.architecture} is not a strip network")


def with_both_coordinates(features: nn.Module, ablation: str) -> dict[str, torch.Tensor]:
    """The weights of these layers, for an input with the coordinates of rows and of columns."""
    weights = dict(features.state_dict())
    parsed = parse_ablation(ablation)
    if isinstance(parsed, Pooled):
        return weights
    # The coordinate of rows comes first.
    where = {Rows: 0, Columns: 1}[type(parsed)]
    look, place = weights["stem.look.0.weight"], weights["stem.place.weight"]
    empty = torch.zeros_like(look[:, -1:])
    weights["stem.look.0.weight"] = torch.cat(
        [look[:, :-1], *((look[:, -1:], empty) if where == 0 else (empty, look[:, -1:]))], dim=1
    )
    none = torch.zeros_like(place)
    weights["stem.place.weight"] = torch.cat((place, none) if where == 0 else (none, place), dim=1)
    return weights


if __name__ == "__main__":
    main()
