"""From a model and images to votes (table 1), in memory or in a folder.

A folder of votes is written shard by shard. Every shard is written atomically, so an interrupted run
continues with the missing shards, and a shard that is made again is identical, byte for byte.

An image that cannot be read stops the run with an error that names it. With `skip_corrupt` it stays in the
table, marked in `Votes.unread`, and counts as wrong: its rank and its min-k are the number of classes. So
skipping images never improves an accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from costcert.datasets.base import Dataset
from costcert.datasets.given import as_dataset
from costcert.errors import CostcertError
from costcert.geometry.ablations import Ablation, as_ablation
from costcert.geometry.sizes import positive_int
from costcert.models.classifier import Classifier
from costcert.store.digests import replace_manifest
from costcert.store.files import MANIFEST, join_manifest, sweep
from costcert.store.folder_names import refuse_file_name
from costcert.store.locations import Location, locate
from costcert.store.votes import VERSION, VotesFolder, votes_manifest, write_votes_shard
from costcert.votes.adaptive import StoppingRule
from costcert.votes.collector import VoteCollector
from costcert.votes.defence import Soft
from costcert.votes.given import classifier_of
from costcert.votes.table import Votes

# What `vote` takes as a model and as data; a type checker cannot name torch's types without importing torch.
AnyModel = Classifier | str | Callable[..., Any]
AnyData = Dataset | str | Any
# Called with the number of images done and the number of all images.
Progress = Callable[[int, int], None]

# Mutants per shard: a killed run loses at most minutes of work, even on a slow machine.
_MUTANTS_PER_SHARD = 1 << 14


@overload
def vote(
    model: AnyModel,
    data: AnyData,
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
    model: AnyModel,
    data: AnyData,
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
    model: AnyModel,
    data: AnyData,
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
    """Evaluate the model on every mutant of every image.

    Images of a `Dataset`, a spelling, uint8 arrays and Pillow images are pictures: the model resizes and
    normalises them. Floats, as a torch DataLoader gives them, are the network's input: they are neither
    resized nor normalised again, and hidden pixels are painted as the model's `hide` says, with 0 by default.
    Patch sizes are then in pixels of these inputs.

    A torch dataset has no ids, so images are numbered in the order in which they come, and what is random is
    refused: a shuffling DataLoader, a transform that gives other pixels the second time. Its images are read
    twice, once for their labels and their digest.

    Args:
        model: what `load_model` returns, or its spelling; a torch module (normalised [M, C, H, W] to logits)
            or a function (images [M, H, W, C] to logits) if the data are floats, a module of timm, or a
            function of uint8 arrays. `load_model(network, image_size=…, mean=…, std=…)` describes others.
        data: a dataset of costcert; a spelling like `"folder:photos"` or `"sample"` (its split `test`); a
            pair (images, labels) of arrays, tensors or lists, with images as uint8 [N, H, W, C] or
            [N, H, W], as normalised floats [N, C, H, W], or as Pillow images; a torch Dataset or DataLoader
            of pairs (image, label), with images as floats [C, H, W], Pillow images or uint8 [H, W, C].
        ablation: the pixels each mutant keeps, a value or its spelling, as `"columns:19"`.
        soft: also make soft ballots, this way.
        out: a folder or a URL to write to or to resume; otherwise the votes stay in memory.
        shard_size: images per shard of that folder.
        skip_corrupt: count an image that cannot be read as wrong, instead of stopping there.
        until: evaluate the mutants of each image only until this rule decides.
        probe: also measure how far logits move on this machine, for `certify`'s epsilon.
        progress: called with the number of images done and the number of all images.

    Example:
        >>> model = cc.load_model(network, image_size=32, mean=0.5, std=0.25)
        >>> votes = cc.vote(model, (images, labels), "columns:4")
        >>> cc.certify(votes, ["2", "5"]).accuracy(k=[1, 5])
    """
    kept, dataset = as_ablation(ablation), as_dataset(data)
    if soft is not None and not isinstance(soft, Soft):
        raise CostcertError(f"soft must be a value like Soft(0.35, 4), got {soft!r}")
    if not isinstance(until, StoppingRule | None):
        raise CostcertError(f"until must be a StoppingRule, got {until!r}")
    if isinstance(progress, type) or not (progress is None or callable(progress)):
        raise CostcertError(
            f"progress must be a function of the images done and of all images, got {progress!r}: "
            "certified_accuracy shows a bar by itself"
        )
    if out is not None:
        refuse_file_name(locate(out), "votes of a run are")
    with classifier_of(model, dataset, kept) as classifier:
        collector = VoteCollector(
            classifier, dataset, kept, soft=soft, skip_corrupt=skip_corrupt, until=until
        )
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
    """Start a folder of votes, or resume one of the same run."""
    existing: Mapping[str, Any] = (
        VotesFolder(folder).manifest if (folder / MANIFEST).is_file() else {"made": {}}
    )
    if shard_size is None:
        shard_size = existing.get("shard_size") or max(1, _MUTANTS_PER_SHARD // len(collector.regions))
    size, images = positive_int(shard_size, "the shard size"), len(collector.dataset)
    provenance = {**collector.provenance(), "probe": existing["made"].get("probe")}
    manifest = votes_manifest(collector.blank(provenance), images=images, shard_size=size)
    join_manifest(folder, manifest, "votes", VERSION)
    sweep(folder)
    if probe and not provenance["probe"]:
        # Two measurements never agree to the last digit, so a resumed run keeps its probe.
        replace_manifest(folder, {**manifest, "made": {**provenance, "probe": collector.probe()}})
    return VotesFolder(folder)


def fill(
    source: VotesFolder,
    collector: VoteCollector,
    numbers: Sequence[int],
    on_progress: Callable[[int], None] = lambda done: None,
) -> None:
    """Write these shards in order."""
    wanted = [source.images(number) for number in numbers]
    for number, votes in zip(
        numbers, collector.shards(wanted, source.manifest["made"], on_progress), strict=True
    ):
        write_votes_shard(votes, source.folder, number)
