"""Single images, for people: the best, the worst and typical ones, with the attack that does most to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from costcert.certification.witnesses import Witness, strongest
from costcert.errors import CostcertError
from costcert.geometry.patches import OnePatch, Several, concrete
from costcert.reports.results import Results
from costcert.store.certificates import CertificatesFolder
from costcert.store.votes import VotesFolder
from costcert.votes.table import Votes

Pixels = npt.NDArray[np.uint8]

# Labels shown beside the true one.
_RIVALS = 6


@dataclass(frozen=True)
class Bar:
    """A label's votes under the strongest attack, as shares of a ballot: clean ones and the attacker's."""

    name: str
    clean: float
    added: float
    is_true: bool


@dataclass(frozen=True)
class Example:
    """One image with all there is to say about it.

    Args:
        votes: of this image alone.
        attack: the strongest one by `patch`.
        certified: rank and min-k by defender and patch spelling.
        pixels: [H, W, C] at the model's input, where the data are at hand.
    """

    image_id: str
    why: str
    votes: Votes
    patch: OnePatch | Several
    attack: Witness
    certified: Mapping[tuple[str, str], tuple[int, int]]
    pixels: Pixels | None = None

    @property
    def truth(self) -> int:
        return int(self.votes.truth[0])

    def name(self, label: int) -> str:
        names = self.votes.class_names
        return f"class {label}" if names is None else names[label]

    @property
    def lifted(self) -> int:
        """Rivals that end level with the true label or above it."""
        return self.attack.position - 1

    def bars(self) -> list[Bar]:
        """The true label and the strongest rivals, as they end."""
        unit = self.votes.cap
        added = np.zeros(self.votes.num_classes, np.int64)
        np.add.at(added, self.attack.labels, self.attack.units)
        order = [label for label in np.argsort(-self.attack.scores, kind="stable") if label != self.truth]
        shown = [self.truth, *(label for label in order[:_RIVALS] if self.attack.scores[label] > 0)]
        return [
            Bar(
                self.name(int(label)),
                float(self.attack.scores[label] - added[label]) / unit,
                float(added[label]) / unit,
                bool(label == self.truth),
            )
            for label in shown
        ]


def choose(folder: CertificatesFolder, defender: str) -> dict[str, str]:
    """Image ids and why: those that this defender certifies best, worst, and as well as half of all."""
    patches = [patch for name, patch in folder.keys if name == defender]
    parts = [
        (
            part.image_ids,
            part.rank(defender, patches[0]),
            sum(np.log(part.min_k(defender, patch)) for patch in patches),
        )
        for part in folder.shards()
    ]
    # An image is judged by its min-k against all patches: by one alone, half of them may be the best.
    names, rank, price = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((rank, price))
    right = order[rank[order] == 1]
    middle = len(order) // 2
    groups = [
        ("best", order[:2]),
        ("typical", order[middle : middle + 2]),
        ("right, but hardly protected", right[::-1][:1]),
        ("worst", order[::-1][:1]),
    ]
    chosen: dict[str, str] = {}
    for why, places in groups:
        for name in names[places]:
            chosen.setdefault(str(name), why)
    return chosen


def examples(
    results: Results,
    folder: CertificatesFolder,
    votes: VotesFolder,
    chosen: Mapping[str, str],
    patch: str,
    pictures: Mapping[str, Pixels],
) -> list[Example]:
    """These images with the strongest attack on each.

    Args:
        chosen: image ids and why, as `choose` gives them.
        pictures: pixels by image id, of those that are at hand.
    """
    ballots = {
        name: shard.take([row]).under(results.classifier)
        for shard in map(votes.shard, range(votes.num_shards))
        for row, name in _rows(shard.image_ids, chosen)
    }
    certified = {
        name: {
            (defender, str(each)): (int(part.rank(defender, each)[row]), int(part.min_k(defender, each)[row]))
            for defender, each in part.keys
        }
        for part in folder.shards()
        for row, name in _rows(part.image_ids, chosen)
    }
    for name in chosen:
        if name not in ballots:
            raise CostcertError(
                f"{votes.folder} does not hold the image {name!r}: pass the votes that {folder.folder} was "
                "made from"
            )
    wanted = concrete(patch, votes.image_size)
    ties = results.classifier.ties
    return [
        Example(
            name,
            why,
            ballots[name],
            wanted,
            strongest(ballots[name], 0, wanted, ties=ties),
            certified[name],
            pictures.get(name),
        )
        for name, why in chosen.items()
        if ballots[name].unread is None and ballots[name].known is None
    ]


def _rows(names: npt.NDArray[np.str_], chosen: Mapping[str, str]) -> list[tuple[int, str]]:
    return [(int(row), str(names[row])) for row in np.flatnonzero(np.isin(names, list(chosen)))]
