"""Loads the model that made stored votes again, with the same settings.

Certificates hold for one classifier: its weights, preprocessing and way of hiding. Code that needs the model
of stored votes loads it here, and gets that model or an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from costcert.errors import CostcertError, OtherModelError
from costcert.geometry.ablations import Ablation
from costcert.geometry.sizes import ImageSize, as_image_size, shown
from costcert.models.classifier import Classifier
from costcert.models.loading import FLOAT32, HALF, INT8, ONNX, load_model, trained_folder
from costcert.models.preprocessing import Preprocessing
from costcert.models.python_names import PYTHON
from costcert.models.together import members_of
from costcert.store.locations import Location

_RECORDED = ("name", "digest", "preprocessing", "hide", "precision")


def model_that_voted(
    spelling: str,
    recorded: Mapping[str, Any],
    *,
    num_classes: int,
    class_names: Sequence[str] | None,
    ablation: Ablation | str,
    image_size: ImageSize,
    checkpoint: Location | None = None,
    device: str = "auto",
) -> Classifier:
    """The model of this spelling; raises if it is not the one that voted.

    Args:
        spelling: as for `load_model`, from the user; a recorded name is only compared, never loaded.
        recorded: the metadata of the model that voted, `manifest["made"]["model"]`.
        num_classes, class_names, ablation, image_size: of the votes.
        checkpoint: weights for `timm:` and `strip:`.
    """
    _refuse_inputs(recorded)
    missing = [field for field in _RECORDED if not recorded.get(field)]
    if missing:
        raise CostcertError(
            f"these votes do not record the {missing[0]} of their model, so it cannot be identified: vote "
            "again"
        )
    preprocessing = Preprocessing.from_json(recorded["preprocessing"])
    kwargs: dict[str, Any] = {}
    if any(each.startswith((ONNX, PYTHON)) or trained_folder(each) is None for each in members_of(spelling)):
        # The folder of a trained model stores these itself.
        kwargs = {"preprocessing": preprocessing, "ablation": ablation}
    model = load_model(
        spelling,
        checkpoint=checkpoint,
        num_classes=num_classes,
        class_names=class_names,
        hide=recorded["hide"],
        device=device,
        # The types of half precision are recorded by their names.
        precision=recorded["precision"] if recorded["precision"] in (FLOAT32, INT8) else HALF,
        **kwargs,
    )
    # The name of an ONNX network is the path of its file, which may change; its digest covers the network.
    both_onnx = spelling.startswith(ONNX) and str(recorded["name"]).startswith(ONNX)
    compared = {field: value for field, value in recorded.items() if field != "name" or not both_onnx}
    refuse_other_model(model, compared, image_size, class_names, spelling=spelling)
    return model


def refuse_other_model(
    model: Classifier,
    recorded: Mapping[str, Any],
    image_size: ImageSize,
    class_names: Sequence[str] | None,
    *,
    spelling: str | None = None,
) -> None:
    """Raise if the metadata of a model differ from those recorded.

    Args:
        spelling: the model's spelling in the error message.
    """
    _refuse_inputs(recorded)
    found, expected = _flat(model.metadata()), _flat(recorded)
    found["image size"], expected["image size"] = shown(model.image_size), shown(as_image_size(image_size))
    if class_names is not None and model.class_names is not None:
        found["class names"], expected["class names"] = tuple(model.class_names), tuple(class_names)
    for field in {**expected, **found}:
        value = expected.get(field)
        # `recorded` has no name where the name is only a path.
        if found.get(field) != value and (field in expected or field != "name"):
            raise OtherModelError(
                f"{spelling or found.get('name')} is not the model that cast these votes "
                f"({recorded.get('name', 'of another name')}, {str(recorded.get('digest'))[:19]}), its "
                f"{field} is {found.get(field)!r}, not {value!r}: certificates of one model do not hold for "
                "another"
            )


def _refuse_inputs(recorded: Mapping[str, Any]) -> None:
    """Raise if the votes are of inputs that the caller prepared: no model says how pictures become those."""
    if "preprocessing" in recorded and recorded["preprocessing"] is None:
        raise CostcertError(
            "these votes do not record the preprocessing of their model, because they were cast on inputs "
            "that were normalised elsewhere (a DataLoader, or float arrays): vote on the pictures themselves"
        )


def _flat(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata as read from a manifest, with the fields of the preprocessing at the top level."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(metadata)))
    preprocessing = plain.pop("preprocessing", {})
    return {**plain, **preprocessing}
