"""The work behind the questions about one image, done in a thread while others are answered."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import numpy as np

from costcert.certification.deployment import Deployed
from costcert.explorer.image import Labelled, ballots_json, certified, with_label
from costcert.explorer.pictures import decoded, encoded
from costcert.explorer.schemas import BallotsQuestion
from costcert.explorer.session import Session
from costcert.geometry.ablations import parse_ablation
from costcert.votes.table import Votes


def certified_ballots(session: Session, question: BallotsQuestion) -> dict[str, Any]:
    if question.image is not None:
        case = session.labelled(question.image, question.label, question.view)
    else:
        case = Labelled(_own_votes(session, question))
    if question.ties is not None:
        case = replace(case, terms=replace(case.terms, ties=question.ties))
    rows = certified(case, question.patches, question.defenders, attack=question.attack)
    return {"label": int(case.votes.truth[0]), "certificates": rows}


def _own_votes(session: Session, question: BallotsQuestion) -> Votes:
    shown = session.votes
    shape: dict[str, Any] = {
        "num_classes": question.num_classes or shown.num_classes,
        "ablation": shown.ablation if question.ablation is None else parse_ablation(question.ablation),
        "image_size": shown.image_size if question.image_size is None else tuple(question.image_size),
    }
    truth = np.array([question.label])
    if question.labels is None or question.units is None:
        return Votes(np.array([question.ballots]), truth, **shape)
    if question.cap is not None:
        shape["cap"] = question.cap
    return Votes.soft([question.labels], [question.units], truth, **shape)


def predicted(
    session: Session, deployed: Deployed, content: bytes, k: int, most_pixels: int
) -> dict[str, Any]:
    picture = decoded(content, most_pixels)
    votes = deployed.votes(picture)
    order, scores = _order(deployed, votes)
    names = session.votes.class_names
    kinds = {kind: votes if kind == "soft" else votes.hard() for kind in session.views}
    file = encoded(deployed.model.prepare(picture))
    return {
        "top": [
            {
                "label": int(label),
                "name": None if names is None else names[label],
                "votes": float(scores[label]) / votes.cap,
            }
            for label in order[:k]
        ],
        "votes": {
            kind: {"image": "", **ballots_json(with_label(each, int(order[0])), session.views[kind].terms)}
            for kind, each in kinds.items()
        },
        "picture": f"data:{file.media_type};base64,{base64.b64encode(file.content).decode()}",
    }


def certified_picture(
    session: Session,
    deployed: Deployed,
    content: bytes,
    label: int | None,
    patches: list[str],
    most_pixels: int,
) -> dict[str, Any]:
    votes = deployed.votes(decoded(content, most_pixels))
    if label is None:
        label = int(_order(deployed, votes)[0][0])
    terms = session.views["soft" if votes.is_soft else "hard"].terms
    case = Labelled(with_label(votes, label), terms, deployed.classifier.mask)
    return {"label": label, "certificates": certified(case, patches)}


def _order(deployed: Deployed, votes: Votes) -> tuple[Any, Any]:
    """Labels best first, and what they are ranked by."""
    return deployed.ranked(votes, votes.num_classes)[0], deployed.scores(votes)[0]
