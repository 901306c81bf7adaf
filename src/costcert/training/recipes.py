"""How to train on mutants: the paper's recipes, and a modern default."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from costcert.errors import CostcertError, SpellingError, nearest
from costcert.geometry.sizes import positive_int


@dataclass(frozen=True)
class Recipe:
    """All that decides what training does, beside the data, the network and the ablation.

    Args:
        mutants: regions drawn anew for every image of a batch.
        shared: whether all images of a batch get the same regions (the paper's way) or each its own.
        schedule: the learning rate after warm-up: `constant`, `steps` (a tenth every third of the epochs)
            or `cosine` (down to nothing).
        backbone_lr_scale: multiplies the learning rate of all layers but the last. Below 1 where they are
            pretrained: a rate that suits a new last layer would make them forget what they know.
        vote_loss_weight: the weight of a loss on the mean ballot of an image's mutants, the rest being on
            each alone. Certificates count on the vote: a mutant that cannot tell may hesitate if others make
            up for it.
        margin: by which share of all ballots the truth should lead every rival, where `vote_loss_weight` is
            above 0. About twice the share of the mutants that a patch touches.
        shift: images are moved by up to so many pixels, borders repeated.
        warp: images are turned, slanted and stretched by up to this share.
        brightness_contrast: brightness and contrast vary by up to this share.
        colour: brightness and contrast of each channel vary by up to this share of the image's own contrast.
        flip: mirror images left to right. Only where no two classes are mirror images: a left turn is no
            right turn.
        average: keep a moving average of the weights and save that; 0 for none.
    """

    epochs: int = 10
    batch_size: int = 128
    mutants: int = 2
    shared: bool = False
    optimizer: str = "adamw"
    lr: float = 1e-3
    backbone_lr_scale: float = 1.0
    momentum: float = 0.9
    weight_decay: float = 0.05
    warmup: float = 0.5
    schedule: str = "cosine"
    smoothing: float = 0.1
    vote_loss_weight: float = 0.0
    margin: float = 0.4
    shift: int = 2
    warp: float = 0.0
    brightness_contrast: float = 0.2
    colour: float = 0.0
    flip: bool = False
    clip: float = 1.0
    average: float = 0.999
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "mutants"):
            positive_int(getattr(self, name), name)
        for name in ("shift", "seed"):
            positive_int(getattr(self, name), name, at_least=0)
        for name, known in (("optimizer", ("adamw", "sgd")), ("schedule", ("constant", "steps", "cosine"))):
            value = getattr(self, name)
            if value not in known:
                raise SpellingError(
                    f"unknown {name} {value!r}{nearest(value, known)}: one of {', '.join(known)}"
                )
        shares = (
            "momentum",
            "smoothing",
            "vote_loss_weight",
            "margin",
            "warp",
            "brightness_contrast",
            "colour",
            "average",
        )
        for name in ("lr", "weight_decay", "warmup", "clip", *shares):
            value = getattr(self, name)
            least_excluded = name == "lr"
            most = 1.0 if name in shares else 1e9
            if not 0 <= value < most or (least_excluded and value == 0):
                bounds = f"{'above' if least_excluded else 'at least'} 0{' and below 1' if most == 1 else ''}"
                raise CostcertError(f"{name} must be {bounds}, got {value}")
        if not 0 < self.backbone_lr_scale <= 1:
            raise CostcertError(
                f"backbone_lr_scale must be above 0 and at most 1, got {self.backbone_lr_scale}"
            )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


PRESETS = {
    "default": Recipe(),
    # One random ablation per batch, no augmentation but the mirror image (peers' pipeline).
    "paper-imagenet": Recipe(
        epochs=30, batch_size=256, mutants=1, shared=True, optimizer="sgd", lr=1e-3, weight_decay=1e-4,
        warmup=0, schedule="constant", smoothing=0, shift=0, brightness_contrast=0,
        flip=True, clip=0, average=0,
    ),
    "paper-small": Recipe(
        epochs=30, batch_size=128, mutants=1, shared=True, optimizer="sgd", lr=1e-2, weight_decay=5e-4,
        warmup=0, schedule="steps", smoothing=0, shift=0, brightness_contrast=0,
        flip=True, clip=0, average=0,
    ),
}  # fmt: skip


def find_recipe(preset: str, **changes: Any) -> Recipe:
    """A preset, with the given settings in place of its own."""
    if preset not in PRESETS:
        raise SpellingError(
            f"unknown preset {preset!r}{nearest(preset, PRESETS)}: use one of {', '.join(PRESETS)}"
        )
    return replace(PRESETS[preset], **{name: value for name, value in changes.items() if value is not None})
