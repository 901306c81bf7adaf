"""The counts of one run, from which tables, figures and pages are made: a few kilobytes for any run.

The JSON file contains what is needed to cite the run, to repeat it and to compare it with others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from costcert import __version__
from costcert.certification.accuracy import Tally
from costcert.certification.certificates import Certificates
from costcert.errors import CostcertError, StoreError
from costcert.geometry.sizes import ImageSize, as_image_size
from costcert.store.files import read_json, write_json
from costcert.store.locations import Location, locate
from costcert.store.runs import open_run
from costcert.store.sources import holds_certificates, open_certificates
from costcert.store.votes import VotesSource
from costcert.votes.defence import Defence
from costcert.votes.table import networks_of

if TYPE_CHECKING:
    import pandas as pd

VERSION = 2
FORMAT = "costcert results"

# The k of the counts by class.
CLASS_KS = (1, 5)

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ByClass:
    """Images per class [L], and those that are clean and certified [L], by (defender, patch, k)."""

    images: Counts
    clean: dict[tuple[str, str, int], Counts] = field(default_factory=dict)
    certified: dict[tuple[str, str, int], Counts] = field(default_factory=dict)

    def add(self, certificates: Certificates, truth: Counts) -> None:
        num_classes = len(self.images)
        for defender, patch in certificates.keys:
            for counts, values in (
                (self.clean, certificates.rank(defender, patch)),
                (self.certified, certificates.min_k(defender, patch)),
            ):
                for k in CLASS_KS:
                    if k < num_classes:
                        total = counts.setdefault((defender, str(patch), k), np.zeros(num_classes, np.int64))
                        total += np.bincount(truth[values <= k], minlength=num_classes)


@dataclass(frozen=True, repr=False)
class Results:
    """The counts of one run, with its manifest.

    Args:
        name: how the run is called in tables and figures.
        manifest: the manifest of the certificates, which contains the manifest of the votes.
        by_class: None if the votes, which contain the true labels, were not passed.
        originals: the number of images of each size before they were resized; empty if it is unknown.
    """

    name: str
    manifest: Mapping[str, Any]
    tally: Tally
    by_class: ByClass | None = None
    originals: Mapping[ImageSize, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return (
            f"Results({self.name}: {self.images:,} images; defenders {', '.join(self.defenders)}; "
            f"patches {', '.join(self.patches)})"
        )

    def _repr_html_(self) -> str:
        from costcert.notebook import results_html

        return results_html(self)

    @property
    def images(self) -> int:
        return self.tally.images

    @property
    def votes(self) -> Mapping[str, Any]:
        """The manifest of the votes."""
        votes: Mapping[str, Any] = self.manifest["votes"]
        return votes

    @property
    def provenance(self) -> Mapping[str, Any]:
        """How the votes were made: the model, the dataset and versions, as far as they are recorded."""
        return self.votes.get("made") or {}

    @property
    def num_classes(self) -> int:
        return int(self.votes["num_classes"])

    @property
    def class_names(self) -> list[str]:
        return list(self.votes.get("class_names") or map(str, range(self.num_classes)))

    @property
    def image_size(self) -> ImageSize:
        return as_image_size(tuple(self.votes["image_size"]))

    @property
    def defenders(self) -> list[str]:
        return list(dict.fromkeys(defender for defender, _ in self.tally.ranks))

    @property
    def patches(self) -> list[str]:
        """Spellings, in the order in which they were certified."""
        return list(dict.fromkeys(patch for _, patch in self.tally.ranks))

    @property
    def classifier(self) -> Defence:
        """The classifier that was certified, by each of the defenders."""
        return Defence.from_json(self.manifest.get("classifier"), f"the manifest of {self.name}")

    @property
    def passes(self) -> int:
        """Mutants per image, each counted for every network of an ensemble."""
        return self.classifier.ablation.count(self.image_size) * networks_of(self.provenance)

    def accuracy(self, k: int | Iterable[int] = range(1, 6), *, confidence: float = 0.95) -> pd.DataFrame:
        """The same table as `Certificates.accuracy`."""
        return self.tally.accuracy(k, confidence=confidence)

    def to_json(self) -> dict[str, Any]:
        ks = [k for k in (*range(1, 6), 10) if k <= self.num_classes]
        return {
            "format": FORMAT,
            "version": VERSION,
            "costcert": __version__,
            "name": self.name,
            "images": self.images,
            "passes": self.passes,
            "accuracy": self.accuracy(ks).to_dict(orient="records"),
            "counts": [
                {
                    "defender": defender,
                    "patch": patch,
                    "rank": _sparse(self.tally.ranks[defender, patch]),
                    "min_k": _sparse(self.tally.min_ks[defender, patch]),
                }
                for defender, patch in self.tally.ranks
            ],
            "manifest": dict(self.manifest),
        }

    def write(self, path: Location) -> None:
        write_json(path, self.to_json())


def read_results(
    path: str | Location, *, votes: str | Location | None = None, name: str | None = None
) -> Results:
    """Count certificates, or read a file that `Results.write` wrote.

    Args:
        path: certificates (a folder, or a `.parquet`, `.csv` or `.json` file), or results.
        votes: the votes that were certified; adds counts by class, which need the true labels.
        name: the name of the run; by default the one in the results, or that of the folder or file.
    """
    path = locate(path)
    if path.is_dir():
        return _counted(path, None if votes is None else locate(votes), name or path.resolve().name)
    if path.suffix != ".json" or holds_certificates(path):
        return _counted(path, None if votes is None else locate(votes), name or path.stem)
    return _from_json(path, name)


def _counted(path: Location, votes: Location | None, name: str) -> Results:
    by_class, truth_of = None, {}
    originals: Counter[ImageSize] = Counter()
    if votes is None:
        source = open_certificates(path)
    else:
        run = open_run(path, votes)
        assert run.certificates is not None
        source, truth_of = run.certificates, _truth(run.votes, originals)
        by_class = ByClass(np.bincount(list(truth_of.values()), minlength=source.num_classes))
    tally = Tally()
    for certificates in source.shards():
        tally.add(certificates)
        if by_class is not None:
            try:
                truth = np.array([truth_of[image] for image in certificates.image_ids])
            except KeyError as error:
                raise CostcertError(
                    f"{path} certifies the image {error.args[0]!r}, which {votes} does not contain: "
                    "pass the votes that these certificates were made from"
                ) from None
            by_class.add(certificates, truth)
    return Results(name, source.manifest, tally, by_class, originals)


def _truth(votes: VotesSource, originals: Counter[ImageSize]) -> dict[str, int]:
    """The true label of each image; the sizes of those that were read are counted in `originals`."""
    truth_of: dict[str, int] = {}
    for shard in map(votes.shard, range(votes.num_shards)):
        truth_of.update(zip(map(str, shard.image_ids), shard.truth.tolist(), strict=True))
        if shard.originals is not None:
            originals.update(
                (height, width) for height, width in shard.originals.tolist() if height and width
            )
    return truth_of


def _sparse(counts: Counts) -> dict[str, int]:
    return {str(value): int(counts[value]) for value in np.flatnonzero(counts)}


def _from_json(path: Location, name: str | None) -> Results:
    found = read_json(path)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise StoreError(
            f"{path} is not a file of results: make one with `costcert report CERTS --out NAME.json`"
        )
    if found.get("version") != VERSION:
        raise StoreError(
            f"{path} has version {found.get('version')}, but this costcert reads {VERSION}: "
            "make it again with `costcert report`"
        )
    tally = Tally()
    try:
        tally.images = int(found["images"])
        length = int(found["manifest"]["votes"]["num_classes"]) + 1
        for row in found["counts"]:
            key = str(row["defender"]), str(row["patch"])
            for counts, column in ((tally.ranks, "rank"), (tally.min_ks, "min_k")):
                dense = counts[key] = np.zeros(length, np.int64)
                for value, count in row[column].items():
                    dense[int(value)] = int(count)
                if dense.min() < 0 or dense[0] or dense.sum() != tally.images:
                    raise ValueError(f"its {column} counts do not add up to {tally.images} images")
        results = Results(name or str(found["name"]), found["manifest"], tally)
        # Reading the image size and the passes also checks them.
        if not (results.image_size and results.passes and tally.ranks) or tally.images < 1:
            raise ValueError("it contains no certificates")
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, CostcertError) as error:
        raise StoreError(f"{path} is damaged: {error}") from None
    return results
