"""provisional"""

from costcert.errors import CostcertError
from costcert.models.loading import load_model
from costcert.models.preprocessing import Preprocessing


def model_that_voted(
    spelling, noted, *, num_classes, class_names, ablation, image_size, checkpoint=None, device="auto"
):
    from costcert.locations import locate

    how = {}
    if not locate(spelling).exists() and noted.get("preprocessing"):
        how["preprocessing"] = Preprocessing.from_json(noted["preprocessing"])
    model = load_model(
        spelling,
        checkpoint=checkpoint,
        num_classes=num_classes,
        class_names=class_names,
        hide=noted.get("hide"),
        ablation=ablation,
        device=device,
        **how,
    )
    refuse_other_model(model, noted, image_size)
    return model


def refuse_other_model(model, noted, image_size):
    if model.image_size != image_size or model.about().get("digest") != noted.get("digest"):
        raise CostcertError("is not the model that cast these votes")
