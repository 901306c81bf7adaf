"""Attacks a dataset shard by shard; a second run continues where the first was stopped."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from costcert.attacks.attempts import Attempt
from costcert.attacks.effort import Effort
from costcert.attacks.evidence import Inspector, refuse_evidence
from costcert.attacks.judging import Judge
from costcert.attacks.placements import Placements, best_placements
from costcert.attacks.results import SUMMARY, UNIVERSAL, VERSION, AttackResults
from costcert.attacks.shard import Shard
from costcert.certification.certify import AnyPatch
from costcert.certification.deployment import Deployed
from costcert.datasets.base import Dataset
from costcert.errors import CostcertError, SpellingError
from costcert.geometry.ablations import Ablation
from costcert.geometry.patches import Original, certified_patch
from costcert.geometry.sizes import positive_int, shown
from costcert.models.classifier import Classifier, Pixels, Soft
from costcert.store.files import MANIFEST, join_manifest, read_sealed, sweep, write_json
from costcert.store.locations import Location, locate
from costcert.store.parquet import missing_shards, positive, shard_ranges
from costcert.votes.collector import VoteCollector
from costcert.votes.defence import Defence
from costcert.votes.table import Votes

if TYPE_CHECKING:
    from costcert.attacks.universal import UniversalPatch

# Called with the number of images done and the number of all images.
Progress = Callable[[int, int], None]

_IMAGES_PER_SHARD = 16
# The most images that a universal patch is optimised on.
_UNIVERSAL_IMAGES = 256


def attack(
    model: Classifier,
    dataset: Dataset,
    patch: AnyPatch,
    k: int,
    out: str | Location,
    *,
    ablation: Ablation | str | None = None,
    defender: str = "costcert",
    soft: Soft | None = None,
    classifier: Defence | None = None,
    effort: Effort | None = None,
    universal: str | None = None,
    seed: int = 0,
    shard_size: int | None = None,
    progress: Progress | None = None,
) -> AttackResults:
    """Try to push the true label of every image out of the top k with a patch of real pixels.

    Args:
        patch: as for `certify`; one on the original is painted there, and all originals must have one size.
        out: a folder for patched images and results; an unfinished one is continued.
        ablation: what each mutant keeps; by default the ablation that the model was trained on.
        classifier: the complete classifier of a run, in place of ablation, defender and soft.
        universal: also make one patch for all images, at one `fixed` position or tried at `random` ones.
        progress: called with the number of images done and the number of all images.

    Raises:
        FalseCertificateError: an attack succeeded on a certified image; the evidence is in `out`.
    """
    campaign = Campaign(
        model,
        dataset,
        patch,
        k,
        locate(out),
        classifier=classifier
        or Deployed(model, ablation, defender=defender, patch=patch, soft=soft).classifier,
        effort=effort or Effort(),
        universal=universal,
        seed=seed,
    )
    campaign.begin(shard_size)
    campaign.share()
    on_progress = progress or (lambda done, images: None)
    missing = campaign.missing()
    done = campaign.num_images - sum(map(campaign.shard_length, missing))
    on_progress(done, campaign.num_images)
    for number in missing:
        campaign.make(number)
        done += campaign.shard_length(number)
        on_progress(done, campaign.num_images)
    campaign.seal(missing)
    return campaign.results()


class Campaign:
    """An attack on a dataset, whose shards any process may make. The arguments are those of `attack`."""

    def __init__(
        self,
        model: Classifier,
        dataset: Dataset,
        patch: AnyPatch,
        k: int,
        folder: Location,
        *,
        classifier: Defence,
        effort: Effort,
        universal: str | None,
        seed: int,
    ) -> None:
        wanted = certified_patch(patch, model.image_size)
        if positive_int(k, "k") >= model.num_classes:
            raise CostcertError(
                f"the model has {model.num_classes} classes, so no label can leave the top {k}: "
                f"take a k of at most {model.num_classes - 1}"
            )
        if universal not in (None, "fixed", "random"):
            raise SpellingError(f"a universal patch is fixed or random, got {universal!r}")
        original = None
        if isinstance(wanted, Original):
            first = dataset.image(0)
            original = (first.height, first.width)
        self.judge = Judge(model, classifier, wanted, original)
        self.dataset, self.k, self.folder = dataset, k, folder
        self.effort, self.universal, self.seed = effort, universal, seed
        self.num_images = len(dataset)
        classifier = self.judge.classifier
        self.placements = Placements(classifier.ablation, self.judge.at_input, model.image_size)
        self.provenance: dict[str, Any] = {
            # The collector also checks that labels mean the same to the model and in the data.
            **VoteCollector(model, dataset, classifier.ablation, soft=classifier.soft).provenance(),
            "classifier": classifier.to_json(),
            "patch": str(wanted),
            **({} if original is None else {"original": list(original)}),
            "k": k,
            "effort": asdict(effort),
            "universal": universal,
            "seed": seed,
        }

    def begin(self, shard_size: int | None) -> None:
        """Begin the folder, or continue one of the same run."""
        size = self._shard_size(shard_size)
        if self.effort.steps or self.universal:
            self._refuse_without_gradients()
        manifest = {"format": "costcert attack", "version": VERSION, "images": self.num_images}
        join_manifest(self.folder, {**manifest, "shard_size": size, **self.provenance}, "attack", VERSION)
        sweep(self.folder)
        refuse_evidence(self.folder)

    def share(self) -> None:
        """Make the universal patch, which all shards share, unless it exists."""
        if not self.is_shared():
            self._universal_patch().save(self.folder)

    def is_shared(self) -> bool:
        return self.universal is None or (self.folder / UNIVERSAL).exists()

    def missing(self) -> list[int]:
        """Numbers of the shards that are not written yet."""
        refuse_evidence(self.folder)
        return missing_shards(self.folder, len(self._ranges))

    def shard_length(self, number: int) -> int:
        return len(self._ranges[number])

    def make(self, number: int) -> None:
        """Attack the images of this shard and write the results."""
        rows = self._ranges[number]
        clean, votes = self._pixels_and_votes(rows)
        rngs = [self._rng(name) for name in votes.image_ids]
        shard = Shard(self.judge, self.placements, self.k, self.effort, clean, votes, rngs)
        inspector = Inspector(
            self.judge, self.placements, clean, votes, shard.min_k, self.folder, self.provenance
        )
        shard.attacked(inspector, self._shared).write(self.folder, number)

    def seal(self, made: Sequence[int]) -> None:
        """Write the summary of a complete folder."""
        summary = self.results(pixels=False).summary(self.k)
        write_json(self.folder / SUMMARY, {**summary, **self.provenance})

    def results(self, *, pixels: bool = True) -> AttackResults:
        """The results of a complete folder."""
        return AttackResults.joined(
            [
                AttackResults.read(self.folder, n, len(rows), pixels=pixels)
                for n, rows in enumerate(self._ranges)
            ]
        )

    @cached_property
    def _ranges(self) -> list[range]:
        """The images of each shard, by the shard size in the manifest."""
        return shard_ranges(self.num_images, self._shard_size(None))

    def _shard_size(self, requested: int | None) -> int:
        """The requested shard size, or that of the run that is continued."""
        if requested is None and (self.folder / MANIFEST).is_file():
            manifest = read_sealed(self.folder, "attack", VERSION).content
            return positive(manifest, "shard_size", str(self.folder / MANIFEST))
        return positive_int(_IMAGES_PER_SHARD if requested is None else requested, "the shard size")

    def _refuse_without_gradients(self) -> None:
        """Take one step on one image, to refuse a model without gradients before anything is written."""
        from costcert.attacks.optimizer import PatchOptimizer

        clean, votes = self._pixels_and_votes(range(1))
        optimizer = PatchOptimizer(self.judge, self.placements, clean, votes, self.k)
        candidates = best_placements(votes, 0, self.placements, self.k, 1, np.random.default_rng(0))
        optimizer.optimize([Attempt(0, placement, clean[0]) for placement in candidates], 1)

    def _pixels_and_votes(self, rows: range) -> tuple[Pixels, Votes]:
        """The uint8 pixels of these images that a patch may rewrite, and their votes."""
        clean = np.stack([self._own_pixels(row) for row in rows])
        votes = self.judge.votes(clean, self.dataset.labels[rows.start : rows.stop])
        return clean, votes.replace(image_ids=self.dataset.ids[rows.start : rows.stop])

    def _own_pixels(self, row: int) -> Pixels:
        image, original = self.dataset.image(row), self.judge.original
        if original is not None and (image.height, image.width) != original:
            raise CostcertError(
                f"image {self.dataset.ids[row]} has {image.height}x{image.width} pixels, but the first one "
                f"has {shown(original)}: attack originals of one size, or name a patch on the input, such as "
                "square:2"
            )
        return self.judge.own_pixels(image)

    def _rng(self, name: str) -> np.random.Generator:
        """A generator that depends only on the seed and the image, not on the image's shard."""
        return np.random.default_rng(list(hashlib.sha256(f"{self.seed}/{name}".encode()).digest()))

    @cached_property
    def _shared(self) -> UniversalPatch | None:
        from costcert.attacks.universal import UniversalPatch

        return None if self.universal is None else UniversalPatch.load(self.folder)

    def _universal_patch(self) -> UniversalPatch:
        from costcert.attacks.optimizer import PatchOptimizer
        from costcert.attacks.universal import universal_patch

        clean, votes = self._pixels_and_votes(range(min(self.num_images, _UNIVERSAL_IMAGES)))
        # Images whose label is certified, or wrong already, cannot improve the patch.
        useful = (self.judge.positions(votes) <= self.k) & (self.judge.certified(votes) > self.k)
        images = np.flatnonzero(useful if useful.any() else np.ones(len(votes)))
        optimizer = PatchOptimizer(self.judge, self.placements, clean, votes, self.k)
        steps = max(1, self.effort.steps)
        return universal_patch(optimizer, str(self.universal), images, steps, self._rng("universal"))
