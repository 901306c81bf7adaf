"""One run summed up: what tables, figures and pages are made of, a few kilobytes however many images.

As a JSON file it holds everything needed to cite the run and to repeat it, and to set it beside others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from costcert import __version__
from costcert.certification.accuracy import Tally
from costcert.errors import CostcertError, StoreError
from costcert.geometry.sizes import ImageSize, as_image_size
from costcert.store.certificates import CertificatesFolder
from costcert.store.files import read_json, write_json
from costcert.store.locations import Location, locate
from costcert.store.runs import certificates_of
from costcert.store.votes import VotesFolder
from costcert.votes.defence import Defence

if TYPE_CHECKING:
    import pandas as pd

VERSION = 2
FORMAT = "costcert results"

# The k that classes are compared at.
CLASS_KS = (1, 5)

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ByClass:
    """Images of each class [L], and how many of them are right and certified at some k."""

    images: Counts
    clean: Mapping[tuple[str, str, int], Counts]
    certified: Mapping[tuple[str, str, int], Counts]


@dataclass(frozen=True)
class Results:
    """What one run came to.

    Args:
        name: what people call it.
        manifest: of the certificates, with that of the votes in it.
        by_class: where the votes, which know the truth, were at hand.
    """

    name: str
    manifest: Mapping[str, Any]
    tally: Tally
    by_class: ByClass | None = None

    @property
    def images(self) -> int:
        return self.tally.images

    @property
    def votes(self) -> Mapping[str, Any]:
        """The manifest of the votes."""
        votes: Mapping[str, Any] = self.manifest["votes"]
        return votes

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
        """Spellings, in the order asked for."""
        return list(dict.fromkeys(patch for _, patch in self.tally.ranks))

    @property
    def classifier(self) -> Defence:
        """What was certified, by each of the defenders."""
        return Defence.from_json(self.manifest.get("classifier"), f"the manifest of {self.name}")

    @property
    def passes(self) -> int:
        """Mutants per image."""
        return self.classifier.ablation.count(self.image_size)

    def accuracy(self, k: int | Iterable[int] = range(1, 6), *, confidence: float = 0.95) -> pd.DataFrame:
        """As `Certificates.accuracy`."""
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
    """Sum up a folder of certificates, or read back a file that `Results.write` made.

    Args:
        votes: the folder of votes that were certified, for what needs the truth.
        name: what to call the run; its file or folder by default.
    """
    path = locate(path)
    if path.is_dir():
        return _summed_up(path, None if votes is None else locate(votes), name or path.resolve().name)
    return _from_json(path, name)


def _summed_up(folder: Location, votes: Location | None, name: str) -> Results:
    ballots = None if votes is None else VotesFolder(votes)
    source = CertificatesFolder(folder) if ballots is None else certificates_of(folder, ballots)
    truths = None if ballots is None else _truths(ballots)
    tally, by_class = Tally(), None if truths is None else _Classes(source.num_classes)
    for certificates in source.shards():
        tally.add(certificates)
        if truths is None or by_class is None:
            continue
        try:
            truth = np.array([truths[image] for image in certificates.image_ids])
        except KeyError as error:
            raise CostcertError(
                f"{folder} certifies the image {error.args[0]!r}, which {votes} does not hold: pass the "
                "votes that these certificates were made from"
            ) from None
        for case in certificates.keys:
            by_class.add(truth, case[0], str(case[1]), certificates.rank(*case), certificates.min_k(*case))
    return Results(
        name, source.manifest, tally, None if by_class is None else by_class.finished(truths or {})
    )


def _truths(votes: VotesFolder) -> dict[str, int]:
    return {
        str(image): int(truth)
        for shard in map(votes.shard, range(votes.num_shards))
        for image, truth in zip(shard.image_ids, shard.truth, strict=True)
    }


class _Classes:
    """Counts by class, in the making."""

    def __init__(self, num_classes: int) -> None:
        self._num_classes = num_classes
        self._ks = [k for k in CLASS_KS if k < num_classes]
        self._clean: dict[tuple[str, str, int], Counts] = {}
        self._certified: dict[tuple[str, str, int], Counts] = {}

    def add(self, truth: Counts, defender: str, patch: str, rank: Counts, min_k: Counts) -> None:
        for counts, values in ((self._clean, rank), (self._certified, min_k)):
            for k in self._ks:
                before = counts.setdefault((defender, patch, k), np.zeros(self._num_classes, np.int64))
                before += np.bincount(truth[values <= k], minlength=self._num_classes)

    def finished(self, truths: Mapping[str, int]) -> ByClass:
        images = np.bincount(list(truths.values()), minlength=self._num_classes)
        return ByClass(images, self._clean, self._certified)


def _sparse(counts: Counts) -> dict[str, int]:
    return {str(value): int(counts[value]) for value in np.flatnonzero(counts)}


def _from_json(path: Location, name: str | None) -> Results:
    found = read_json(path)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise StoreError(
            f"{path} is not a file of results: `costcert report CERTS --out NAME.json` makes one"
        )
    if found.get("version") != VERSION:
        raise StoreError(
            f"{path} has version {found.get('version')}, this costcert reads {VERSION}: "
            "make it again with `costcert report`"
        )
    tally = Tally()
    try:
        tally.images = int(found["images"])
        longest = int(found["manifest"]["votes"]["num_classes"]) + 1
        for row in found["counts"]:
            case = str(row["defender"]), str(row["patch"])
            for counts, column in ((tally.ranks, "rank"), (tally.min_ks, "min_k")):
                dense = counts[case] = np.zeros(longest, np.int64)
                for value, count in row[column].items():
                    dense[int(value)] = int(count)
                if dense.min() < 0 or dense[0] or dense.sum() != tally.images:
                    raise ValueError(f"its {column} counts do not add up to {tally.images} images")
        results = Results(name or str(found["name"]), found["manifest"], tally)
        # A size that is none is refused when it is read.
        if not (results.image_size and results.passes and tally.ranks) or tally.images < 1:
            raise ValueError("it holds no certificates")
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, CostcertError) as error:
        raise StoreError(f"{path} is damaged: {error}") from None
    return results
