"""Evaluates a model on every mutant of every image of a dataset and collects the votes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from itertools import islice, zip_longest
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from costcert.compiled import cores
from costcert.datasets.base import Dataset, ImageError, Prepared
from costcert.errors import CostcertError
from costcert.geometry.ablations import Ablation
from costcert.geometry.sizes import ImageSize
from costcert.models.batch_dependence import refuse_batch_dependence
from costcert.models.classifier import Ballots, Classifier, Pending, Pixels, ballots_of
from costcert.models.preprocessing import Preprocessing
from costcert.votes.adaptive import StoppingRule, TopK, TopRows, next_turns
from costcert.votes.defence import Defence, Soft
from costcert.votes.probe import probe
from costcert.votes.table import Votes

# Mutants per call of the model: enough to fill its batches, few enough to keep their logits in memory.
_MUTANTS_AT_ONCE = 1 << 12
_LOGITS_AT_ONCE = 1 << 24
# Images and regions of a probe.
_PROBE_SIZE = (8, 16)
# Images and regions on which a model is tried out before a run.
_TRY_OUT_SIZE = (3, 4)
_LIBRARIES = ("costcert", "numpy", "pillow", "torch", "torchvision", "timm", "onnxruntime")


# The numbers of some mutants, and their logits.
_Pending = tuple[list[int], Pending]


class _Part(NamedTuple):
    """Images that are evaluated together: those that could be read, by row, and their logits."""

    images: range
    rows: list[int]
    read: Pixels
    pending: list[_Pending]
    originals: list[ImageSize | None]


class VoteCollector:
    """Evaluates a model on the mutants of images, some at a time.

    Args:
        soft: also make soft ballots, this way.
        skip_corrupt: continue after an image that cannot be read.
        until: evaluate the mutants of an image only until this rule decides.
        try_out: first test on some of the images whether the model depends on its batch, and whether it
            prepares them as it says.
    """

    def __init__(
        self,
        model: Classifier,
        dataset: Dataset,
        ablation: Ablation,
        *,
        soft: Soft | None = None,
        skip_corrupt: bool = False,
        until: StoppingRule | TopK | TopRows | None = None,
        try_out: bool = True,
    ) -> None:
        _check_classes(model, dataset)
        self.model, self.dataset, self.soft, self.skip_corrupt = model, dataset, soft, skip_corrupt
        self.ablation = ablation
        self.until = until
        self._try_out = try_out
        self.regions = ablation.regions(model.image_size)
        model.refuse(self.regions)
        if isinstance(until, StoppingRule):
            until.refuse(ablation, model.image_size)
        self.mutants_at_once = max(1, min(_MUTANTS_AT_ONCE, _LOGITS_AT_ONCE // model.num_classes))

    def provenance(self) -> dict[str, Any]:
        """How these votes are made, for the manifest."""
        return {
            # The manifest keeps `hide` with the classifier.
            "model": {key: value for key, value in self.model.metadata().items() if key != "hide"}
            # No other program can prepare images as the caller did, so none may believe that the model does.
            | ({"preprocessing": None} if self.dataset.normalised else {}),
            "data": self.dataset.metadata(),
            **({"until": self.until.to_json()} if isinstance(self.until, StoppingRule) else {}),
            "versions": {name: found for name in _LIBRARIES if (found := _version(name))},
        }

    def shards(
        self, wanted: Sequence[range], provenance: Mapping[str, Any], on_progress: Callable[[int], None]
    ) -> Iterator[Votes]:
        """The votes of each of these ranges of images, in order."""
        step = max(1, self.mutants_at_once // len(self.regions))
        parts = [[images[at : at + step] for at in range(0, len(images), step)] for images in wanted]
        done = 0
        with closing(self._begun([part for each in parts for part in each])) as begun:
            for images, expected in zip(wanted, parts, strict=True):
                ballots = self._blank(images)
                unread = np.ones(len(images), dtype=np.bool_)
                known = np.zeros(ballots.labels.shape, dtype=np.bool_)
                originals = np.zeros((len(images), 2), dtype=np.int64)
                for part in islice(begun, len(expected)):
                    rows = [part.images[row] - images.start for row in part.rows]
                    if rows and self.until is None:
                        self._store(part.pending, ballots, rows)
                        known[rows] = True
                    elif rows:
                        self._evaluate_until(part.read, ballots, known, rows, images)
                    unread[rows] = False
                    for row, original in zip(rows, part.originals, strict=True):
                        originals[row] = original or (0, 0)
                    done += len(part.images)
                    on_progress(done)
                # An unread image counts as wrong whatever its ballots are: none is left to the attacker.
                known[unread] = True
                # Without the claim, nobody may follow a patch on the original to the input.
                claimed = self.model.preparation is not None and not self.dataset.normalised
                found = originals if claimed else None
                yield self._votes(images, ballots, provenance, unread=unread, known=known, originals=found)

    def _begun(self, parts: Sequence[range]) -> Generator[_Part, None, None]:
        """The parts in order, while the next ones are read and evaluated."""
        begun: deque[_Part] = deque()
        failure: Exception | None = None
        reading = self._read_ahead(parts)
        try:
            while True:
                try:
                    images, prepared = next(reading)
                except StopIteration:
                    break
                except Exception as error:
                    # Raised once the parts before it are done.
                    failure = error
                    break
                begun.append(self._begin_part(images, prepared))
                if len(begun) > self.model.calls_at_once:
                    yield begun.popleft()
            while begun:
                yield begun.popleft()
            if failure is not None:
                raise failure
        finally:
            for part in begun:
                for _, logits in part.pending:
                    logits.cancel()

    @cached_property
    def classifier(self) -> Defence:
        """The classifier that casts these votes."""
        hide = self.model.metadata().get("hide")
        return Defence(self.ablation, hide, self.soft).with_classes(self.model.num_classes)

    def blank(self, provenance: Mapping[str, Any]) -> Votes:
        """Placeholder votes of one image, from which the manifest of a run is made."""
        return self._votes(range(1), self._blank(range(1)), provenance)

    def probe(self) -> dict[str, Any]:
        """The probe of a few images and regions, spread evenly."""
        count, width = _PROBE_SIZE
        images = np.unique(np.linspace(0, len(self.dataset) - 1, count).astype(int)).tolist()
        regions = np.unique(np.linspace(0, len(self.regions) - 1, width).astype(int)).tolist()
        pixels = [read.pixels for image in images if (read := self._read(image)) is not None]
        if not pixels:
            raise CostcertError("none of the images chosen for the probe can be read")
        found = probe(self.model, np.stack(pixels), [self.regions[at] for at in regions], soft=self.soft)
        return asdict(found)

    def _try_out_model(self, pixels: Pixels, numbers: Sequence[int]) -> None:
        """Test the model once per run, on real images: artificial ones may not show what is wrong."""
        if self._try_out:
            images, regions = _TRY_OUT_SIZE
            chosen = np.unique(np.linspace(0, len(self.regions) - 1, regions).astype(int))
            refuse_batch_dependence(self.model, pixels[:images], [self.regions[at] for at in chosen])
            self._refuse_other_preparation(pixels[:images], numbers[:images])
            self._try_out = False

    def _refuse_other_preparation(self, pixels: Pixels, numbers: Sequence[int]) -> None:
        """Raise if these images were not prepared as the model claims and as manifests record it."""
        claimed = self.model.preparation
        if claimed is None or self.dataset.normalised:
            return
        metadata = self.model.metadata()
        name, noted = metadata.get("name", type(self.model).__name__), metadata.get("preprocessing")
        if noted != claimed.to_json():
            raise CostcertError(
                f"{name} claims the preparation {claimed.to_json()}, but records {noted!r} as its "
                'preprocessing: return preparation.to_json() as metadata()["preprocessing"]'
            )
        recorded = Preprocessing.from_json(noted)
        for number, prepared in zip(numbers, pixels, strict=True):
            if not np.array_equal(recorded.prepare(self.dataset.image(number)), prepared):
                raise CostcertError(
                    f"image {self.dataset.ids[number]} was prepared otherwise than by the `preparation` of "
                    f"{name}, so certificates against patches on the original would be false: correct it, or "
                    "leave it None"
                )

    def _blank(self, images: range) -> Ballots:
        """Ballots of images that were not read: each for a wrong label, without units."""
        shape, classes = (len(images), len(self.regions)), self.model.num_classes
        wrong = (self.dataset.labels[images.start : images.stop, None] + 1) % classes
        labels = np.ascontiguousarray(np.broadcast_to(wrong, shape)).astype(np.int32)
        ballots = Ballots(labels, np.zeros(shape, dtype=np.float32))
        if self.soft is None:
            return ballots
        best = min(self.soft.best, classes)
        units = np.zeros((*shape, best), dtype=np.int32)
        return ballots._replace(
            soft_labels=np.zeros_like(units), soft_units=units, cuts=np.zeros(shape, dtype=np.float32)
        )

    def _read_ahead(self, parts: Sequence[range]) -> Iterator[tuple[range, list[Prepared | None]]]:
        """The pixels of each part, in order; the next part is read while the model evaluates this one."""
        with ThreadPoolExecutor(cores()) as readers:
            ahead = [readers.submit(self._read, image) for image in parts[0]] if parts else []
            for part, following in zip_longest(parts, parts[1:], fillvalue=range(0)):
                now, ahead = ahead, [readers.submit(self._read, image) for image in following]
                yield part, [reading.result() for reading in now]

    def _read(self, image: int) -> Prepared | None:
        try:
            prepared = self.dataset.prepared(image, self.model)
        except ImageError as error:
            if self.skip_corrupt:
                return None
            raise ImageError(
                f"{error}: repair or remove it, or pass --skip-corrupt (skip_corrupt=True), which counts it "
                "as wrong"
            ) from error
        expected = (*self.model.image_size, self.model.channels)
        if prepared.pixels.shape != expected:
            raise CostcertError(
                f"the model prepares pixels of shape {prepared.pixels.shape}, expected {expected}"
            )
        return prepared

    def _begin_part(self, images: range, prepared: list[Prepared | None]) -> _Part:
        rows = [row for row, read in enumerate(prepared) if read is not None]
        if not rows:
            return _Part(images, rows, np.empty(0, dtype=np.uint8), [], [])
        read = np.stack([each.pixels for each in prepared if each is not None])
        self._try_out_model(read, [images[row] for row in rows])
        pending = self._begin(read, range(len(self.regions))) if self.until is None else []
        originals = [each.original for each in prepared if each is not None]
        return _Part(images, rows, read, pending, originals)

    def _begin(self, pixels: Pixels, mutants: Sequence[int]) -> list[_Pending]:
        """Begin to evaluate these mutants of these images, some mutants at a time."""
        some = [
            list(mutants[at : at + self.mutants_at_once])
            for at in range(0, len(mutants), self.mutants_at_once)
        ]
        return [(each, self.model.begin(pixels, [self.regions[at] for at in each])) for each in some]

    def _store(self, pending: list[_Pending], ballots: Ballots, rows: list[int]) -> None:
        """Wait for the logits, and write their ballots into these rows of `ballots`."""
        for mutants, begun in pending:
            logits = begun.result()
            expected = (len(rows), len(mutants), self.model.num_classes)
            if logits.shape != expected:
                raise CostcertError(f"the model returns logits of shape {logits.shape}, expected {expected}")
            columns: Any = zip(ballots, ballots_of(logits, self.soft), strict=True)
            for stored, new in columns:
                if stored is not None:
                    stored[np.array(rows)[:, None], mutants] = new

    def _evaluate_until(
        self,
        pixels: Pixels,
        ballots: Ballots,
        known: npt.NDArray[np.bool_],
        rows: list[int],
        images: range,
    ) -> None:
        """Evaluate some mutants of each image after others, until the stopping rule decides."""
        assert self.until is not None
        undecided, truth = np.arange(len(rows)), self.dataset.labels[images.start : images.stop]
        while len(undecided):
            open_rows = np.array(rows)[undecided]
            selected: Any = Ballots._make(None if part is None else part[open_rows] for part in ballots)
            votes = self._table(selected, truth[open_rows], known=known[open_rows])
            lacking = self.until.lacking(votes)
            is_open = lacking > 0
            undecided, open_rows = undecided[is_open], open_rows[is_open]
            if not len(undecided):
                return
            turns = next_turns(votes.take(is_open), lacking[is_open], self.until)
            begun = [self._begin(pixels[undecided[turn.images]], turn.mutants) for turn in turns]
            for turn, pending in zip(turns, begun, strict=True):
                its_rows = open_rows[turn.images]
                self._store(pending, ballots, its_rows.tolist())
                known[its_rows[:, None], turn.mutants] = True

    def _votes(self, images: range, ballots: Ballots, provenance: Mapping[str, Any], **masks: Any) -> Votes:
        return self._table(
            ballots,
            self.dataset.labels[images.start : images.stop],
            image_ids=self.dataset.ids[images.start : images.stop],
            class_names=self.dataset.class_names or self.model.class_names,
            provenance=provenance,
            **masks,
        )

    def _table(self, ballots: Ballots, truth: npt.NDArray[np.int32], **more: Any) -> Votes:
        classifier = self.classifier
        return Votes(
            ballots.labels,
            truth,
            num_classes=self.model.num_classes,
            ablation=classifier.ablation,
            hide=classifier.hide,
            image_size=self.model.image_size,
            margins=ballots.margins,
            cuts=ballots.cuts,
            recipe=classifier.soft,
            labels=ballots.soft_labels,
            units=ballots.soft_units,
            **more,
        )


def _check_classes(model: Classifier, dataset: Dataset) -> None:
    """Refuse a model and a dataset whose labels mean different classes."""
    names, known = dataset.class_names, model.class_names
    if dataset.num_classes > model.num_classes or (names and len(names) != model.num_classes):
        raise CostcertError(
            f"{dataset.name} has {dataset.num_classes} classes, but the model has {model.num_classes}: use a "
            "model that was trained on these classes"
        )
    if names and known and names != known:
        at = next(at for at, (one, other) in enumerate(zip(names, known, strict=True)) if one != other)
        raise CostcertError(
            f"class {at} is {names[at]!r} in {dataset.name}, but {known[at]!r} in the model: "
            "use the same class names in the same order"
        )


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None
