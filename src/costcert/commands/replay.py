"""`costcert check --replay`: does the model still vote as it did?"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from costcert.commands.progress import bar
from costcert.datasets.parse import parse_dataset
from costcert.errors import CostcertError
from costcert.geometry.ablations import parse_ablation
from costcert.models.classifier import Classifier, Soft
from costcert.models.loading import load_model
from costcert.polling import Poll

if TYPE_CHECKING:
    from costcert.commands.check import Request
    from costcert.commands.stored import Row


def same_weights(
    console: Console, request: Request, manifest: Mapping[str, Any]
) -> tuple[Classifier, list[str]]:
    """The model, and whether it has other weights than the one that voted."""
    votes = manifest["votes"]
    noted = (votes.get("made") or {}).get("model") or {}
    spelled = str(request.model).partition(":")[0] in ("timm", "strip")
    model = load_model(
        str(request.model),
        checkpoint=request.checkpoint,
        num_classes=int(votes["num_classes"]),
        hide=noted.get("hide"),
        ablation=votes["ablation"] if spelled else None,
        image_size=tuple(votes["image_size"]) if spelled else None,
    )
    found = model.about()["digest"]
    if noted.get("digest") != found:
        return model, [
            f"{request.model} has weights of digest {found}, the votes are of {noted.get('digest')}"
        ]
    console.print(f"Weights: {request.model} has those that voted")
    return model, []


def asked_again(
    console: Console,
    request: Request,
    model: Classifier,
    manifest: Mapping[str, Any],
    stored: Callable[[Sequence[int]], Iterator[Row]],
) -> list[str]:
    """Ask the model about some images once more; ballots that differ by more than noise are problems."""
    votes = manifest["votes"]
    dataset = parse_dataset(str(request.data), request.split or "test")
    soft = votes["made"].get("soft")
    poll = Poll(
        model, dataset, parse_ablation(votes["ablation"]), soft=None if soft is None else Soft(**soft)
    )
    epsilon = (votes["made"].get("probe") or {}).get("epsilon", 0.0)
    places = {name: index for index, name in enumerate(dataset.ids)}
    images = int(votes["images"])
    chosen = sorted(random.Random(request.seed).sample(range(images), min(request.replay or 1, images)))  # noqa: S311
    rows = [row for row in stored(chosen) if not row.get("unread")]
    missing = [row["image_id"] for row in rows if row["image_id"] not in places]
    if missing:
        raise CostcertError(f"{request.data} holds no image {missing[0]!r}: pass the data that voted")
    wanted = [range(place, place + 1) for place in (places[row["image_id"]] for row in rows)]
    problems, asked, noise = [], 0, 0
    with bar("voting again") as tell:
        again = poll.shards(wanted, {}, lambda done: tell(done, len(wanted)))
        for row, found in zip(rows, again, strict=True):
            ballots = np.asarray(row["ballots"])
            margins = np.asarray(row.get("margins", np.full(len(ballots), np.inf)))
            other = np.flatnonzero(ballots != found.ballots[0])
            within = margins[other] <= epsilon
            asked += len(ballots)
            noise += int(within.sum())
            problems += [
                f"image {row['image_id']}, mutant {mutant}: voted {ballots[mutant]}, now votes "
                f"{found.ballots[0, mutant]}; its margin was {margins[mutant]:.3g}, epsilon is {epsilon:.3g}"
                for mutant in other[~within]
            ]
    console.print(
        f"Replay: {asked:,} mutants of {len(rows):,} images asked again: {len(problems) + noise:,} vote "
        f"otherwise, {noise:,} of them within the probed epsilon {epsilon:.3g}"
    )
    return problems
