"""`costcert check --replay`: does the model cast the stored votes on these images?

Nothing in the stored folder excuses a difference. Which ballots may differ between machines is measured here,
by a probe of this model on these images, and by the margins and cuts of the new evaluation.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console

from costcert.datasets.base import Dataset, ImageError
from costcert.datasets.parse import parse_dataset
from costcert.datasets.subsets import limited, with_ids
from costcert.errors import CostcertError
from costcert.models.reopening import model_that_voted
from costcert.store.locations import Location
from costcert.store.votes import FIRST_VERSION, classifier_of
from costcert.votes.collector import VoteCollector
from costcert.votes.probe import SAFETY
from costcert.votes.table import Votes

if TYPE_CHECKING:
    from costcert.verification.stored import Row


class ReplaySample(NamedTuple):
    """Which images are evaluated again.

    Args:
        data: the spelling of the dataset that voted.
        split: by default the one that the votes record.
        images: the number of images, chosen at random by the seed.
    """

    data: str
    split: str | None
    images: int
    seed: int


class Replay:
    """The model that voted, to be evaluated again; raises if the model is another one.

    Args:
        manifest: of the votes.
        model: its spelling, with a checkpoint for some.
        where: names the manifest in error messages.
    """

    def __init__(
        self, manifest: Mapping[str, Any], model: str, *, checkpoint: Location | None, where: str
    ) -> None:
        self._manifest = manifest
        self._provenance: Mapping[str, Any] = manifest["made"]
        self._classifier = classifier_of(manifest, where)
        self._model = model_that_voted(
            model,
            {**(self._provenance.get("model") or {}), "hide": self._classifier.hide},
            num_classes=int(manifest["num_classes"]),
            class_names=manifest.get("class_names"),
            ablation=self._classifier.ablation,
            image_size=tuple(manifest["image_size"]),
            checkpoint=checkpoint,
        )

    def problems(
        self,
        console: Console,
        sample: ReplaySample,
        ids: Sequence[str],
        stored: Callable[[Sequence[int]], Iterator[Row]],
        on_progress: Callable[[int, int], None],
    ) -> list[str]:
        """Stored facts and votes that differ from those of the model and the data, one sentence each.

        Args:
            ids: all images that voted, in order.
            stored: reads the stored rows of images by their numbers.
            on_progress: called with the number of images done and the number of all.
        """
        split = sample.split or (self._provenance.get("data") or {}).get("split") or "test"
        dataset = parse_dataset(sample.data, split)
        index_of = {name: index for index, name in enumerate(dataset.ids)}
        missing = [name for name in ids if name not in index_of]
        if missing:
            raise CostcertError(f"{sample.data} holds no image {missing[0]!r}: pass the data that voted")
        found = self._data_problems(dataset, ids)
        collector = VoteCollector(self._model, dataset, self._classifier.ablation, soft=self._classifier.soft)
        measured = collector.probe()
        found += self._probe_problems(measured)
        count = min(sample.images or 1, len(ids))
        chosen = sorted(random.Random(sample.seed).sample(range(len(ids)), count))  # noqa: S311
        rows = list(stored(chosen))
        for row in rows:
            found += _row_problems(row, dataset, index_of[row["image_id"]])
        again = [row for row in rows if not row.get("unread")]
        wanted = [range(index_of[row["image_id"]], index_of[row["image_id"]] + 1) for row in again]
        evaluated = excused = 0
        replayed = collector.shards(wanted, {}, lambda done: on_progress(done, len(wanted)))
        for row, votes in zip(again, replayed, strict=True):
            compared = _Compared(row, votes, measured["epsilon"], measured["tau"])
            evaluated += int(compared.known.sum())
            excused += compared.excused
            found += compared.problems
        tau = f", tau {measured['tau']}" if self._classifier.soft else ""
        moved = f"what logits move by on this machine (epsilon {measured['epsilon']:.3g}{tau})"
        within = f"{excused:,} of them differ, but within {moved}; " if excused else ""
        console.print(
            f"Replay: {evaluated:,} mutants of {len(again):,} images evaluated again; {within}"
            + (f"{len(found):,} problems" if found else "no problems")
        )
        return found

    def _data_problems(self, dataset: Dataset, ids: Sequence[str]) -> list[str]:
        """Whether the images that voted are all images of the dataset, or of its recorded subset."""
        recorded = self._provenance.get("data") or {}
        name = str(recorded.get("name"))
        if rule := re.search(r" \(limit (\d+), seed (\d+)\)$", name):
            expected = limited(dataset, int(rule[1]), int(rule[2]))
        elif re.search(r" \(\d+ by id\)$", name):
            expected = with_ids(dataset, ids)
        else:
            expected = dataset
        found = []
        if expected.ids != list(ids):
            found.append(
                f"these are votes of {len(ids):,} images, but {name} has {len(expected):,}: some were left "
                "out, or replaced by others"
            )
        elif self._manifest.get("version") != FIRST_VERSION and recorded != expected.metadata():
            other = [key for key, value in expected.metadata().items() if recorded.get(key) != value]
            found.append(f"the data are not those that voted: their {', '.join(other or recorded)} differ")
        names = dataset.class_names or self._model.class_names
        if self._manifest.get("class_names") != (None if names is None else list(names)):
            found.append("the classes of these votes have other names than those of the data or the model")
        return found

    def _probe_problems(self, measured: Mapping[str, Any]) -> list[str]:
        """Whether the recorded probe allows for less than was measured here."""
        recorded = self._provenance.get("probe")
        if not recorded:
            return []
        return [
            f"the recorded probe allows for {name} {recorded[name]:.3g}, but {measured[name] / SAFETY:.3g} "
            "was measured"
            for name in ("epsilon", "tau")
            if not recorded[name] >= measured[name] / SAFETY
        ]


def _row_problems(row: Row, dataset: Dataset, index: int) -> list[str]:
    """What is wrong in an image's row, apart from votes: its label, and whether it could be read."""
    name = row["image_id"]
    if row["truth"] != dataset.label(index):
        label = dataset.label(index)
        return [f"image {name}: its true label is stored as {row['truth']}, but is {label} in the data"]
    if row.get("unread"):
        try:
            dataset.image(index)
        except ImageError:
            return []
        return [f"image {name}: it is stored as unread, but it can be read"]
    stored = (row.get("original_height"), row.get("original_width"))
    if stored != (None, None):
        picture = dataset.image(index)
        if stored != (picture.height, picture.width):
            shown = f"{stored[0]}x{stored[1]}, but has {picture.height}x{picture.width}"
            return [f"image {name}: its original is stored as {shown} pixels"]
    return []


class _Compared:
    """One image's stored votes, compared with the votes of the new evaluation.

    Args:
        epsilon: a ballot may differ if its new margin or cut is at most this.
        tau: units by which a soft ballot may differ otherwise.
    """

    def __init__(self, row: Row, now: Votes, epsilon: float, tau: int) -> None:
        self._row, self._now = row, now
        # Version 1 called this column `asked`.
        known = row.get("known") or row.get("asked")
        self.known = np.ones(now.num_mutants, np.bool_) if known is None else np.asarray(known) == 1
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
                    # Two infinities are equal, but their difference is NaN.
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
    return f"its {name} are stored as {then[mutant]:.3g}, but are {now[mutant]:.3g} now"


def _moved(
    labels: npt.NDArray[Any],
    units: npt.NDArray[Any],
    other_labels: npt.NDArray[Any],
    other_units: npt.NDArray[Any],
    num_classes: int,
) -> npt.NDArray[np.int64]:
    """[B], the largest change of any label's units between two soft ballots."""
    change = np.zeros((len(labels), num_classes), np.int64)
    mutants = np.arange(len(labels))[:, None]
    np.add.at(change, (mutants, labels), units)
    np.subtract.at(change, (mutants, other_labels), other_units)
    return np.asarray(np.abs(change).max(axis=1))
