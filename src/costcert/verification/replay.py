"""`costcert check --replay`: are these the votes that the model casts on these images?

Nothing that a folder says excuses a difference. Which ballots another machine may cast otherwise is measured
here, by a probe of this model on these images, and by the margins and cuts that it has now.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from rich.console import Console

from costcert.datasets.base import Dataset, ImageError
from costcert.datasets.parse import parse_dataset
from costcert.datasets.subsets import limited, with_ids
from costcert.errors import CostcertError
from costcert.models.reopening import model_that_voted
from costcert.store.votes import FIRST_VERSION, classifier_of
from costcert.votes.collector import VoteCollector
from costcert.votes.probe import SAFETY
from costcert.votes.table import Votes

if TYPE_CHECKING:
    from costcert.cli.check import CheckOptions
    from costcert.verification.stored import Row


class Replay:
    """The model that voted, asked again.

    Args:
        manifest: of the votes.
    """

    def __init__(self, request: CheckOptions, manifest: Mapping[str, Any]) -> None:
        self._request, self._manifest = request, manifest
        self._made: Mapping[str, Any] = manifest["made"]
        self._classifier = classifier_of(manifest, str(request.votes or request.certificates))
        self._model = model_that_voted(
            str(request.model),
            {**(self._made.get("model") or {}), "hide": self._classifier.hide},
            num_classes=int(manifest["num_classes"]),
            class_names=manifest.get("class_names"),
            ablation=self._classifier.ablation,
            image_size=tuple(manifest["image_size"]),
            checkpoint=request.checkpoint,
        )

    def problems(
        self,
        console: Console,
        ids: Sequence[str],
        stored: Callable[[Sequence[int]], Iterator[Row]],
        on_progress: Callable[[int, int], None],
    ) -> list[str]:
        """What the model and the data do not say as these votes do, a sentence each.

        Args:
            ids: all images that voted, in their order.
            stored: reads the rows of some of them.
            on_progress: called with the images that are done, and all that are evaluated.
        """
        request = self._request
        split = request.split or (self._made.get("data") or {}).get("split") or "test"
        dataset = parse_dataset(str(request.data), split)
        places = {name: index for index, name in enumerate(dataset.ids)}
        missing = [name for name in ids if name not in places]
        if missing:
            raise CostcertError(f"{request.data} holds no image {missing[0]!r}: pass the data that voted")
        found = self._other_data(dataset, ids)
        collector = VoteCollector(self._model, dataset, self._classifier.ablation, soft=self._classifier.soft)
        measured = collector.probe()
        found += self._bold_probe(measured)
        count = min(request.replay or 1, len(ids))
        chosen = sorted(random.Random(request.seed).sample(range(len(ids)), count))  # noqa: S311
        rows = list(stored(chosen))
        for row in rows:
            found += _wrong_facts(row, dataset, places[row["image_id"]])
        again = [row for row in rows if not row.get("unread")]
        wanted = [range(places[row["image_id"]], places[row["image_id"]] + 1) for row in again]
        evaluated = excused = 0
        replayed = collector.shards(wanted, {}, lambda done: on_progress(done, len(wanted)))
        for row, votes in zip(again, replayed, strict=True):
            compared = _Compared(row, votes, measured["epsilon"], measured["tau"])
            evaluated += int(compared.known.sum())
            excused += compared.excused
            found += compared.problems
        console.print(
            f"Replay: {evaluated:,} mutants of {len(again):,} images evaluated again; {excused:,} of them "
            f"say something else, but lie within what logits move by here (epsilon {measured['epsilon']:.3g}"
            + (f", tau {measured['tau']}" if self._classifier.soft else "")
            + f"); {len(found):,} problems"
        )
        return found

    def _other_data(self, dataset: Dataset, ids: Sequence[str]) -> list[str]:
        """Whether all images of the data voted, or those that a rule takes; and whether they are the same."""
        noted = self._made.get("data") or {}
        name = str(noted.get("name"))
        if rule := re.search(r" \(limit (\d+), seed (\d+)\)$", name):
            expected = limited(dataset, int(rule[1]), int(rule[2]))
        elif re.search(r" \(\d+ by id\)$", name):
            expected = with_ids(dataset, ids)
        else:
            expected = dataset
        found = []
        if expected.ids != list(ids):
            found.append(
                f"these are votes of {len(ids):,} images, but {name} are {len(expected):,}: some were left "
                "out, or others stand in their place"
            )
        elif self._manifest.get("version") != FIRST_VERSION and noted != expected.metadata():
            other = [key for key, value in expected.metadata().items() if noted.get(key) != value]
            found.append(f"the data are not those that voted: their {', '.join(other or noted)} differ")
        names = dataset.class_names or self._model.class_names
        if self._manifest.get("class_names") != (None if names is None else list(names)):
            found.append("the classes of these votes have other names than those of the data or the model")
        return found

    def _bold_probe(self, measured: Mapping[str, Any]) -> list[str]:
        """Whether the votes note a probe that promises more than can be seen here."""
        noted = self._made.get("probe")
        if not noted:
            return []
        return [
            f"the noted probe allows for {name} {noted[name]:.3g}, but {measured[name] / SAFETY:.3g} was seen"
            for name in ("epsilon", "tau")
            if not noted[name] >= measured[name] / SAFETY
        ]


def _wrong_facts(row: Row, dataset: Dataset, place: int) -> list[str]:
    """What an image's row says that has nothing to do with the model."""
    name = row["image_id"]
    if row["truth"] != dataset.label(place):
        return [
            f"image {name}: its true label is stored as {row['truth']}, the data say {dataset.label(place)}"
        ]
    if row.get("unread"):
        try:
            dataset.image(place)
        except ImageError:
            return []
        return [f"image {name}: it is stored as not readable, but it can be read"]
    return []


class _Compared:
    """One image's votes as they are stored and as they are cast now.

    Args:
        epsilon: what lies within it, by the logits of now, may be another label.
        tau: units by which soft ballots may be off otherwise.
    """

    def __init__(self, row: Row, now: Votes, epsilon: float, tau: int) -> None:
        self._row, self._now = row, now
        said = row.get("known") or row.get("asked")
        self.known = np.ones(now.num_mutants, np.bool_) if said is None else np.asarray(said) == 1
        self.problems: list[str] = []
        self.excused = 0
        assert now.margins is not None
        ballots = np.asarray(row["ballots"])
        self._judge(
            ballots != now.ballots[0],
            now.margins[0] <= epsilon,
            lambda at: f"voted {ballots[at]}, now votes {now.ballots[0, at]}",
        )
        for name, distances in (("margins", now.margins), ("cuts", now.cuts)):
            if distances is not None and name in row:
                then = np.asarray(row[name], np.float32)
                with np.errstate(invalid="ignore"):
                    # Two infinities are equal, and their difference is no number.
                    off = ~((then == distances[0]) | (np.abs(then - distances[0]) <= epsilon))
                self._judge(off, np.zeros_like(off), partial(_distance, name, then, distances[0]))
        if now.labels is not None and now.units is not None and now.cuts is not None:
            shape = now.labels.shape[1:]
            labels, units = (np.asarray(row[f"soft_{of}"]).reshape(shape) for of in ("labels", "units"))
            moved = _moved(labels, units, now.labels[0], now.units[0], now.num_classes)
            self._judge(
                moved > tau,
                now.cuts[0] <= epsilon,
                lambda at: f"its soft ballot differs by {moved[at]} units for a label",
            )

    def _judge(
        self, differs: npt.NDArray[np.bool_], excused: npt.NDArray[np.bool_], what: Callable[[int], str]
    ) -> None:
        wrong = differs & self.known
        self.excused += int((wrong & excused).sum())
        self.problems += [
            f"image {self._row['image_id']}, mutant {at}: {what(int(at))}; its margin is now "
            f"{self._margin(int(at)):.3g}"
            for at in np.flatnonzero(wrong & ~excused)
        ]

    def _margin(self, mutant: int) -> float:
        return float("nan") if self._now.margins is None else float(self._now.margins[0, mutant])


def _distance(name: str, then: npt.NDArray[Any], now: npt.NDArray[Any], mutant: int) -> str:
    return f"its {name} are stored as {then[mutant]:.3g}, and are {now[mutant]:.3g} now"


def _moved(
    labels: npt.NDArray[Any],
    units: npt.NDArray[Any],
    other_labels: npt.NDArray[Any],
    other_units: npt.NDArray[Any],
    num_classes: int,
) -> npt.NDArray[np.int64]:
    """[B], the most units that any label gained or lost from one soft ballot to the other."""
    change = np.zeros((len(labels), num_classes), np.int64)
    mutants = np.arange(len(labels))[:, None]
    np.add.at(change, (mutants, labels), units)
    np.subtract.at(change, (mutants, other_labels), other_units)
    return np.asarray(np.abs(change).max(axis=1))
