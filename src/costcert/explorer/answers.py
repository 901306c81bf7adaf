"""The work behind requests about one image; it runs in a thread of a WorkQueue."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import numpy as np

from costcert.certification.deployment import Deployed
from costcert.explorer.image import LabelledImage, ballots_json, certify_image, with_label
from costcert.explorer.pictures import decode, encode
from costcert.explorer.schemas import CertifyRequest
from costcert.explorer.session import Session
from costcert.geometry.ablations import parse_ablation
from costcert.votes.table import Votes


def certify_ballots(session: Session, request: CertifyRequest) -> dict[str, Any]:
    """Certificates of an image of the run, or of ballots in the request."""
    if request.image is not None:
        image = session.labelled(request.image, request.label, request.view)
    else:
        image = LabelledImage(_request_votes(session, request))
    if request.ties is not None:
        image = replace(image, terms=replace(image.terms, ties=request.ties))
    rows = certify_image(image, request.patches, request.defenders, attack=request.attack)
    return {"label": image.label, "certificates": rows}


def _request_votes(session: Session, request: CertifyRequest) -> Votes:
    """The ballots in the request; ablation, size and classes default to those of the run."""
    default = session.votes
    options: dict[str, Any] = {
        "num_classes": request.num_classes or default.num_classes,
        "ablation": default.ablation if request.ablation is None else parse_ablation(request.ablation),
        "image_size": default.image_size if request.image_size is None else tuple(request.image_size),
    }
    if request.original is not None:
        options["originals"] = [request.original]
    # What patches on the original need to know: pictures are prepared as in this run.
    model = default.provenance.get("model") or {}
    options["provenance"] = {"model": {"preprocessing": model.get("preprocessing")}}
    truth = np.array([request.label])
    if request.labels is None or request.units is None:
        return Votes(np.array([request.ballots]), truth, **options)
    if request.cap is not None:
        options["cap"] = request.cap
    return Votes.soft([request.labels], [request.units], truth, **options)


def predict_picture(
    session: Session, deployed: Deployed, content: bytes, k: int, max_pixels: int
) -> dict[str, Any]:
    """The top k of an uploaded picture, its ballots, and the pixels that the model sees."""
    picture = decode(content, max_pixels)
    votes = deployed.votes(picture)
    order, scores = _ranking(deployed, votes)
    names = session.votes.class_names
    by_kind = {kind: votes if kind == "soft" else votes.hard() for kind in session.views}
    file = encode(deployed.model.prepare(picture))
    return {
        "top": [
            {
                "label": int(label),
                "name": None if names is None else names[label],
                "votes": float(scores[label]) / votes.cap,
            }
            for label in order[:k]
        ],
        "ranked_by": "score" if deployed.defender.reads_masks else "votes",
        "votes": {
            kind: {"image": "", **ballots_json(with_label(each, int(order[0])), session.views[kind].terms)}
            for kind, each in by_kind.items()
        },
        "picture": f"data:{file.media_type};base64,{base64.b64encode(file.content).decode()}",
    }


def certify_picture(
    session: Session,
    deployed: Deployed,
    content: bytes,
    label: int | None,
    patches: list[str],
    max_pixels: int,
) -> dict[str, Any]:
    """Certificates of a label of an uploaded picture, by default of the predicted label."""
    votes = deployed.votes(decode(content, max_pixels))
    if label is None:
        label = int(_ranking(deployed, votes)[0][0])
    terms = session.views["soft" if votes.is_soft else "hard"].terms
    image = LabelledImage(with_label(votes, label), terms, deployed.classifier.mask)
    return {"label": label, "certificates": certify_image(image, patches)}


def _ranking(deployed: Deployed, votes: Votes) -> tuple[Any, Any]:
    """Labels, best first, and the scores they are ranked by."""
    return deployed.ranked(votes, votes.num_classes)[0], deployed.scores(votes)[0]
