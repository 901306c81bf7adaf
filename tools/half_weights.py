"""Copies the folder of a trained model with its weights rounded to half precision, which halves its size.

    python tools/half_weights.py model small-model

The network computes in float32 as before; its weights, and so its digest and its votes, are those rounded.
Statistics of normalisation layers, which are few and of any size, are kept as they are.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file

from costcert.models.saved import WEIGHTS, load_saved, save_model


def main() -> None:
    parser = argparse.ArgumentParser(description="Rounds the weights of a trained model to half precision.")
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    saved = load_saved(options.model)
    network = saved.mutants.network
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(parameter.half())
    save_model(options.out, network, saved.card)
    rounded = {name for name, _ in network.named_parameters()}
    weights = {
        name: value.half() if name in rounded else value for name, value in network.state_dict().items()
    }
    save_file(weights, options.out / WEIGHTS, metadata={"format": "pt"})
    load_saved(options.out)
    print(f"{options.out}: {(options.out / WEIGHTS).stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
