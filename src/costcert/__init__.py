"""costcert: proves whether a classifier's top-k answer survives an adversarial patch.

    votes = costcert.Votes(ballots, truth, num_classes=1000, ablation=costcert.Columns(19), image_size=224)
    certs = costcert.certify(votes, patches=[costcert.Square(32)])
    certs.accuracy(k=[1, 5])

Names are imported on first use, so that `import costcert` and `costcert --help` are instant.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from costcert.certification.certificates import Certificates as Certificates
    from costcert.certification.certify import certify as certify
    from costcert.certification.deployment import Deployed as Deployed
    from costcert.certification.guarantees import Bounds as Bounds
    from costcert.certification.guarantees import bounds as bounds
    from costcert.certification.guarantees import exclusion as exclusion
    from costcert.certification.guarantees import min_k_all as min_k_all
    from costcert.certification.guarantees import min_k_any as min_k_any
    from costcert.certification.guarantees import stability as stability
    from costcert.certification.witnesses import Witness as Witness
    from costcert.certification.witnesses import strongest as strongest
    from costcert.certification.witnesses import witness as witness
    from costcert.datasets.parse import parse_dataset as parse_dataset
    from costcert.errors import CostcertError as CostcertError
    from costcert.evaluation import certified_accuracy as certified_accuracy
    from costcert.geometry.ablations import Blocks as Blocks
    from costcert.geometry.ablations import Columns as Columns
    from costcert.geometry.ablations import Masks as Masks
    from costcert.geometry.ablations import Pooled as Pooled
    from costcert.geometry.ablations import Rows as Rows
    from costcert.geometry.ablations import parse_ablation as parse_ablation
    from costcert.geometry.patches import AreaShare as AreaShare
    from costcert.geometry.patches import Original as Original
    from costcert.geometry.patches import Rectangle as Rectangle
    from costcert.geometry.patches import Scaled as Scaled
    from costcert.geometry.patches import Several as Several
    from costcert.geometry.patches import Shape as Shape
    from costcert.geometry.patches import Square as Square
    from costcert.geometry.patches import parse_patch as parse_patch
    from costcert.models.classifier import Classifier as Classifier
    from costcert.models.loading import load_model as load_model
    from costcert.store.sources import read_certificates as read_certificates
    from costcert.store.sources import read_votes as read_votes
    from costcert.store.sources import write_certificates as write_certificates
    from costcert.store.sources import write_votes as write_votes
    from costcert.votes.defence import Defence as Defence
    from costcert.votes.defence import Soft as Soft
    from costcert.votes.table import Votes as Votes
    from costcert.votes.tuning import tune as tune
    from costcert.votes.voting import vote as vote

__version__ = "0.2.0"

_HOMES = {
    "certification.certificates": ("Certificates",),
    "certification.certify": ("certify",),
    "certification.deployment": ("Deployed",),
    "certification.guarantees": ("Bounds", "bounds", "exclusion", "min_k_all", "min_k_any", "stability"),
    "certification.witnesses": ("Witness", "strongest", "witness"),
    "datasets.parse": ("parse_dataset",),
    "errors": ("CostcertError",),
    "evaluation": ("certified_accuracy",),
    "geometry.ablations": ("Blocks", "Columns", "Masks", "Pooled", "Rows", "parse_ablation"),
    "geometry.patches": (
        "AreaShare",
        "Original",
        "Rectangle",
        "Scaled",
        "Several",
        "Shape",
        "Square",
        "parse_patch",
    ),
    "models.classifier": ("Classifier",),
    "models.loading": ("load_model",),
    "store.sources": ("read_certificates", "read_votes", "write_certificates", "write_votes"),
    "votes.defence": ("Defence", "Soft"),
    "votes.table": ("Votes",),
    "votes.tuning": ("tune",),
    "votes.voting": ("vote",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'costcert' has no attribute {name!r}")
    return getattr(import_module(f"costcert.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
