"""From a classifier and images to table 1.

Votes are made shard by shard. A shard is there whole or not at all, so a run that was stopped, however
rudely, goes on with the first shard that is missing; and a shard that is made again is the same, byte for
byte.

An image that cannot be read ends the run, by name. With `skip_corrupt` it stays in the table, marked as not
read (`Votes.unread`), and counts as wrong: its rank and its min-k are the number of classes. So leaving out
what is hard to read never makes an accuracy better.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from costcert.datasets.base import Dataset
from costcert.geometry.ablations import Ablation, parse_ablation
from costcert.geometry.sizes import positive_int
from costcert.models.classifier import Classifier, Soft
from costcert.store.digests import replace_manifest
from costcert.store.files import MANIFEST, join_manifest, sweep
from costcert.store.locations import Location, locate
from costcert.store.votes import VERSION, VotesFolder, votes_manifest, write_votes_shard
from costcert.votes.adaptive import StoppingRule
from costcert.votes.collector import VoteCollector
from costcert.votes.table import Votes

# Called with the images that have voted and all images.
Progress = Callable[[int, int], None]

# Mutants between two shards: what a killed run loses is minutes, even on a slow machine.
_MUTANTS_PER_SHARD = 1 << 14


@overload
def vote(
    model: Classifier,
    dataset: Dataset,
    ablation: Ablation | str,
    *,
    soft: Soft | None = ...,
    out: None = ...,
    skip_corrupt: bool = ...,
    until: StoppingRule | None = ...,
    probe: bool = ...,
    progress: Progress | None = ...,
) -> Votes: ...


@overload
def vote(
    model: Classifier,
    dataset: Dataset,
    ablation: Ablation | str,
    *,
    soft: Soft | None = ...,
    out: str | Location,
    shard_size: int | None = ...,
    skip_corrupt: bool = ...,
    until: StoppingRule | None = ...,
    probe: bool = ...,
    progress: Progress | None = ...,
) -> VotesFolder: ...


def vote(
    model: Classifier,
    dataset: Dataset,
    ablation: Ablation | str,
    *,
    soft: Soft | None = None,
    out: str | Location | None = None,
    shard_size: int | None = None,
    skip_corrupt: bool = False,
    until: StoppingRule | None = None,
    probe: bool = False,
    progress: Progress | None = None,
) -> Votes | VotesFolder:
    """Ask the model about every mutant of every image.

    Args:
        soft: also make soft ballots, this way.
        out: a folder or a URL to write to, or to go on with; otherwise the votes stay in memory.
        shard_size: images per shard of that folder.
        skip_corrupt: count an image that cannot be read as wrong, instead of stopping there.
        until: ask each image's mutants only until this is decided.
        probe: also measure how far logits move on this machine, for `certify`'s epsilon.
        progress: told how many images have voted, of how many.
    """
    kept = parse_ablation(ablation) if isinstance(ablation, str) else ablation
    collector = VoteCollector(model, dataset, kept, soft=soft, skip_corrupt=skip_corrupt, until=until)
    on_progress = progress or (lambda done, images: None)
    if out is None:
        provenance = {**collector.provenance(), "probe": collector.probe() if probe else None}
        on_progress(0, len(dataset))
        (votes,) = collector.shards(
            [range(len(dataset))], provenance, lambda done: on_progress(done, len(dataset))
        )
        return votes
    source = begin(locate(out), collector, shard_size, probe)
    missing = source.missing()
    before = source.num_images - sum(source.shard_length(number) for number in missing)
    on_progress(before, source.num_images)
    fill(source, collector, missing, lambda done: on_progress(before + done, source.num_images))
    source.seal(missing)
    return source


def begin(
    folder: Location, collector: VoteCollector, shard_size: int | None = None, probe: bool = False
) -> VotesFolder:
    """A folder for these votes, or one to go on with if what is there is of the same run."""
    begun: Mapping[str, Any] = VotesFolder(folder).manifest if (folder / MANIFEST).is_file() else {"made": {}}
    if shard_size is None:
        shard_size = begun.get("shard_size") or max(1, _MUTANTS_PER_SHARD // len(collector.regions))
    size, images = positive_int(shard_size, "the shard size"), len(collector.dataset)
    provenance = {**collector.provenance(), "probe": begun["made"].get("probe")}
    manifest = votes_manifest(collector.blank(provenance), images=images, shard_size=size)
    join_manifest(folder, manifest, "votes", VERSION)
    sweep(folder)
    if probe and not provenance["probe"]:
        # No two measurements agree to the last digit, so a begun run keeps the one it has.
        replace_manifest(folder, {**manifest, "made": {**provenance, "probe": collector.probe()}})
    return VotesFolder(folder)


def fill(
    source: VotesFolder,
    collector: VoteCollector,
    numbers: Sequence[int],
    on_progress: Callable[[int], None] = lambda done: None,
) -> None:
    """Write these shards, one after the other."""
    wanted = [source.images(number) for number in numbers]
    for number, votes in zip(
        numbers, collector.shards(wanted, source.manifest["made"], on_progress), strict=True
    ):
        write_votes_shard(votes, source.folder, number)
