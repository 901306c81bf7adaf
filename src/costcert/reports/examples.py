"""Examples of single images: the best, typical and worst ones, with the strongest attack on each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from costcert.certification.witnesses import Witness, strongest
from costcert.errors import CostcertError
from costcert.geometry.patches import Certified, certified_patch
from costcert.reports.results import Results
from costcert.reports.standing import Standing, worst_standing
from costcert.store.certificates import CertificatesSource
from costcert.store.votes import VotesSource
from costcert.votes.table import Votes

Pixels = npt.NDArray[np.uint8]

# Labels shown besides the true one.
_RIVALS = 6


@dataclass(frozen=True)
class Bar:
    """The votes of a label under the strongest attack, in ballots: clean ones, and those of the attacker."""

    name: str
    clean: float
    added: float
    is_true: bool


@dataclass(frozen=True)
class Example:
    """One image with its votes, its certificates and the strongest attack.

    Args:
        reason: why it was chosen.
        votes: of this image only.
        attack: the strongest one with `patch`; where PatchCleanser reads votes of masks, what stands then.
        certified: rank and min-k by defender and spelling of the patch.
        pixels: [H, W, C] at the input of the model; None if the dataset was not passed.
    """

    image_id: str
    reason: str
    votes: Votes
    patch: Certified
    attack: Witness | Standing
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
        """Number of rivals that reach or pass the true label under the attack."""
        return self.attack.position - 1

    def bars(self) -> list[Bar]:
        """The true label and its strongest rivals under the attack."""
        unit = self.votes.cap
        if isinstance(self.attack, Standing):
            return self._scored(self.attack)
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

    def _scored(self, stand: Standing) -> list[Bar]:
        """What the true label scores at least, and what rivals score and can score with the patch."""
        unit = self.votes.cap
        rivals = [label for label in stand.rivals(self.truth)[:_RIVALS] if stand.most[label] > 0]
        return [Bar(self.name(self.truth), stand.least / unit, 0.0, True)] + [
            Bar(
                self.name(label),
                float(stand.scores[label]) / unit,
                float(stand.most[label] - stand.scores[label]) / unit,
                False,
            )
            for label in rivals
        ]


def just_misses(k: int) -> str:
    """The reason of an image that a patch pushes out of the top k, but not far."""
    return f"just misses the top {k}" if k > 1 else "just misses the first place"


def choose(folder: CertificatesSource, defender: str, patch: str, k: int) -> dict[str, str]:
    """Image ids and the reason of the choice: best, typical and worst min-k for this defender.

    The first are those that just miss a certificate for the top k against this patch.
    """
    patches = [patch for name, patch in folder.keys if name == defender]
    parts = [
        (
            part.image_ids,
            part.rank(defender, patches[0]),
            part.rank(defender, patch),
            part.min_k(defender, patch),
            sum(np.log(part.min_k(defender, patch)) for patch in patches),
        )
        for part in folder.shards()
    ]
    # Images are sorted by min-k against all patches: with a single patch many images would be equally good.
    names, rank, clean, min_k, difficulty = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((rank, difficulty))
    missing = order[(clean[order] <= k) & (min_k[order] > k) & (min_k[order] < folder.num_classes)]
    missing = missing[np.argsort(min_k[missing], kind="stable")]
    right = order[rank[order] == 1]
    middle = len(order) // 2
    groups = [
        (just_misses(k), missing[:2]),
        ("best", order[:1]),
        ("typical", order[middle : middle + 1]),
        ("right without a sticker, but worst certified", right[::-1][:1]),
        ("worst", order[::-1][:1]),
    ]
    chosen: dict[str, str] = {}
    for reason, rows in groups:
        for name in names[rows]:
            chosen.setdefault(str(name), reason)
    return chosen


def examples(
    results: Results,
    folder: CertificatesSource,
    votes: VotesSource,
    chosen: Mapping[str, str],
    patch: str,
    pictures: Mapping[str, Pixels],
) -> list[Example]:
    """The chosen images with the strongest attack on each; images with unknown ballots are left out.

    Args:
        chosen: the output of `choose`.
        pictures: pixels by image id, as far as available.
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
                f"{votes.path} does not contain the image {name!r}: pass the votes that were certified in "
                f"{folder.path}"
            )
    wanted = certified_patch(patch, votes.image_size)
    ties = results.classifier.ties
    has_rows = "patchcleanser" in results.defenders
    return [
        Example(
            name,
            reason,
            ballots[name],
            wanted,
            worst_standing(ballots[name], 0, wanted)
            if has_rows
            else strongest(ballots[name], 0, wanted, ties=ties),
            certified[name],
            pictures.get(name),
        )
        for name, reason in chosen.items()
        if ballots[name].unread is None and ballots[name].known is None
    ]


def _rows(names: npt.NDArray[np.str_], chosen: Mapping[str, str]) -> list[tuple[int, str]]:
    return [(int(row), str(names[row])) for row in np.flatnonzero(np.isin(names, list(chosen)))]
