"""The model that cast some votes, opened again and set up as it was then.

Certificates hold for one classifier: these weights, these pixels, this way of hiding. Whoever has a question
for the model of stored votes comes here, and gets that model or an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from costcert.errors import CostcertError, OtherModelError
from costcert.geometry.ablations import Ablation
from costcert.geometry.sizes import ImageSize, as_image_size, shown
from costcert.models.classifier import Classifier
from costcert.models.loading import ONNX, load_model, trained_folder
from costcert.models.preprocessing import Preprocessing
from costcert.store.locations import Location

_NOTED = ("name", "digest", "preprocessing", "hide", "precision")


def model_that_voted(
    spelling: str,
    noted: Mapping[str, Any],
    *,
    num_classes: int,
    class_names: Sequence[str] | None,
    ablation: Ablation | str,
    image_size: ImageSize,
    checkpoint: Location | None = None,
    device: str = "auto",
) -> Classifier:
    """The model of this spelling if it is the one that voted.

    Args:
        spelling: as for `load_model`.
        noted: what the votes say about their model: `manifest["made"]["model"]`.
        num_classes, class_names, ablation, image_size: of the votes.
        checkpoint: weights for `timm:` and `strip:`.
    """
    missing = [field for field in _NOTED if not noted.get(field)]
    if missing:
        raise CostcertError(
            f"these votes do not say the {missing[0]} of the model that cast them, so none can be told to be "
            "it: vote once more"
        )
    preprocessing = Preprocessing.from_json(noted["preprocessing"])
    kwargs: dict[str, Any] = {}
    if spelling.startswith(ONNX) or trained_folder(spelling) is None:
        # Only the folder of a trained model says these itself.
        kwargs = {"preprocessing": preprocessing, "ablation": ablation}
    model = load_model(
        spelling,
        checkpoint=checkpoint,
        num_classes=num_classes,
        class_names=class_names,
        hide=noted["hide"],
        device=device,
        autocast=noted["precision"] != "float32",
        **kwargs,
    )
    # The name of an ONNX network is where its file lay; its digest covers the whole network.
    moved = spelling.startswith(ONNX) and str(noted["name"]).startswith(ONNX)
    other = {field: value for field, value in noted.items() if field != "name" or not moved}
    refuse_other_model(model, other, image_size, class_names, spelling=spelling)
    return model


def refuse_other_model(
    model: Classifier,
    noted: Mapping[str, Any],
    image_size: ImageSize,
    class_names: Sequence[str] | None,
    *,
    spelling: str | None = None,
) -> None:
    """Raise where a model is not the one of which this is noted, or was set up otherwise.

    Args:
        spelling: how somebody called the model, for the sentence.
    """
    found, expected = _flat(model.metadata()), _flat(noted)
    found["image size"], expected["image size"] = shown(model.image_size), shown(as_image_size(image_size))
    if class_names is not None and model.class_names is not None:
        found["class names"], expected["class names"] = tuple(model.class_names), tuple(class_names)
    for field in {**expected, **found}:
        value = expected.get(field)
        # The name is left out of what is noted where it says only where a file lay.
        if found.get(field) != value and (field in expected or field != "name"):
            raise OtherModelError(
                f"{spelling or found.get('name')} is not the model that cast these votes "
                f"({noted.get('name', 'of another name')}, {str(noted.get('digest'))[:19]}), its {field} is "
                f"{found.get(field)!r}, not {value!r}: certificates of one model say nothing about another"
            )


def _flat(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What a model says of itself, as a manifest has it, its preprocessing spread out."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(metadata)))
    preprocessing = plain.pop("preprocessing", {})
    return {**plain, **preprocessing}
