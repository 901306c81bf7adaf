"""Training recipes: the paper's two, and a modern default."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from costcert.errors import CostcertError, SpellingError, nearest
from costcert.geometry.sizes import positive_int, positive_ints


@dataclass(frozen=True)
class Recipe:
    """The hyperparameters of training.

    Args:
        mutants: number of random mutants per image of a batch.
        shared: whether all images of a batch get the same regions (as in the paper) or each its own.
        backbone_lr_scale: multiplies the learning rate of all layers but the last. Below 1 for a pretrained
            backbone: a learning rate that suits a new last layer would overwrite what it has learned.
        warmup: epochs over which the learning rate rises linearly to `lr`.
        schedule: the learning rate after warm-up: `constant`, `steps` (divided by 10 after each third of the
            epochs) or `cosine` (down to 0).
        smoothing: label smoothing.
        vote_loss_weight: the weight of a loss on the mean ballot of an image's mutants; the remaining weight
            is on the loss of each mutant alone. Certificates depend on the vote: a mutant without evidence
            may be uncertain if others make up for it.
        certificate_loss_weight: the weight of a loss on what CostCert compares with the budget of the worst
            position of a patch, for the mutants that were drawn. It needs several mutants per image.
        certified_patches, certified_ks: the patches and values of k of this loss.
        teacher_weight: where a teacher is given, the weight of its soft targets within the loss of each
            mutant alone.
        teacher_temperature: at which the labels of teacher and network are compared.
        margin: the share of all ballots by which the truth should lead every rival, where `vote_loss_weight`
            is above 0. About twice the share of mutants that a patch touches.
        shift: largest random translation in pixels; borders are repeated.
        warp: largest random scaling, shear and rotation, as a share.
        brightness_contrast: largest random change of brightness and contrast, as a share.
        colour: largest random change of brightness and contrast per channel, as a share of the image's own
            contrast.
        flip: mirror half of the images. Only where no two classes are mirror images, such as left and right
            turns.
        clip: largest norm of the gradient; 0 for no clipping.
        average: decay of the moving average of the weights, which is what is saved; 0 for no average.
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
    certificate_loss_weight: float = 0.0
    certified_patches: tuple[str, ...] = ()
    certified_ks: tuple[int, ...] = (1, 5)
    teacher_weight: float = 0.7
    teacher_temperature: float = 3.0
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
            "certificate_loss_weight",
            "teacher_weight",
            "margin",
            "warp",
            "brightness_contrast",
            "colour",
            "average",
        )
        for name in ("lr", "teacher_temperature", "weight_decay", "warmup", "clip", *shares):
            value = getattr(self, name)
            above_zero = name in ("lr", "teacher_temperature")
            limit = 1.0 if name in shares else 1e9
            if not 0 <= value < limit or (above_zero and value == 0):
                bounds = f"{'above' if above_zero else 'at least'} 0{' and below 1' if limit == 1 else ''}"
                raise CostcertError(f"{name} must be {bounds}, got {value}")
        if self.vote_loss_weight + self.certificate_loss_weight >= 1:
            raise CostcertError(
                f"vote_loss_weight {self.vote_loss_weight} and certificate_loss_weight "
                f"{self.certificate_loss_weight} leave no weight for the loss of each mutant: together they "
                "must be below 1"
            )
        if self.certificate_loss_weight and not self.certified_patches:
            raise CostcertError(
                "certificate_loss_weight needs the patches to certify against: pass them with --patch, as in "
                "2,5"
            )
        if self.certificate_loss_weight and self.mutants < 2:
            raise CostcertError(
                "certificate_loss_weight needs the votes of several mutants per image: pass --mutants 4 or "
                "more"
            )
        object.__setattr__(self, "certified_ks", tuple(positive_ints(self.certified_ks, "k")))
        if not 0 < self.backbone_lr_scale <= 1:
            raise CostcertError(
                f"backbone_lr_scale must be above 0 and at most 1, got {self.backbone_lr_scale}"
            )

    def to_json(self) -> dict[str, Any]:
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}


PRESETS = {
    "default": Recipe(),
    # One random region per batch and mirror images as the only augmentation, as in the pipelines of peers.
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
    """A preset with some of its settings changed; None leaves a setting as it is."""
    if preset not in PRESETS:
        raise SpellingError(
            f"unknown preset {preset!r}{nearest(preset, PRESETS)}: use one of {', '.join(PRESETS)}"
        )
    return replace(PRESETS[preset], **{name: value for name, value in changes.items() if value is not None})
