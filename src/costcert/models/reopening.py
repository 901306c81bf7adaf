"""The model that cast some votes, opened again and set up as it was then.

Certificates hold for one classifier: these weights, these pixels, this way of hiding. Whoever has a question
for the model of stored votes comes here, and gets that model or an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from costcert.errors import CostcertError
from costcert.geometry.ablations import Ablation
from costcert.geometry.sizes import ImageSize, as_image_size, shown
from costcert.locations import Location
from costcert.models.classifier import Classifier
from costcert.models.loading import ONNX, load_model, trained_folder
from costcert.models.preprocessing import Preprocessing

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
    how: dict[str, Any] = {}
    if spelling.startswith(ONNX) or trained_folder(spelling) is None:
        # Only the folder of a trained model says these itself.
        how = {"preprocessing": preprocessing, "ablation": ablation}
    model = load_model(
        spelling,
        checkpoint=checkpoint,
        num_classes=num_classes,
        class_names=class_names,
        hide=noted["hide"],
        device=device,
        autocast=noted["precision"] != "float32",
        **how,
    )
    found = {**model.about(), "image size": shown(model.image_size)}
    found |= found.pop("preprocessing")
    expected = {**noted, "image size": shown(as_image_size(image_size))}
    expected |= preprocessing.to_json()
    del expected["preprocessing"]
    if spelling.startswith(ONNX) and str(noted["name"]).startswith(ONNX):
        # Its name is where the file lay; its digest covers the whole network.
        del expected["name"]
    if class_names is not None:
        expected["class names"], found["class names"] = tuple(class_names), model.class_names
    for field, value in expected.items():
        if found.get(field) != value:
            raise CostcertError(
                f"{spelling} is not the model that cast these votes ({noted['name']}, "
                f"{str(noted['digest'])[:19]}), its {field} is {found.get(field)!r}, not {value!r}: "
                "certificates of one model say nothing about another"
            )
    return model
