"""The images of votes as their model gets them, for `report` and `explore`."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from costcert.errors import CostcertError

if TYPE_CHECKING:
    from costcert.datasets.base import Dataset
    from costcert.explorer.pictures import Pictures
    from costcert.store.votes import VotesSource


def pictures_of(
    image_ids: Collection[str], votes: VotesSource, data: str | None, split: str | None
) -> Pictures | None:
    """Pictures of these images; None where the data are not known.

    They are those of `data`, or the array `images` of an .npz of votes, or the sample that comes with the
    package.

    Args:
        data, split: as on the command line.
    """
    from costcert.explorer.pictures import Pictures
    from costcert.models.preprocessing import Preprocessing

    dataset = _dataset(votes, data, split)
    if dataset is None:
        return None
    ids = dataset.ids
    if not set(image_ids).intersection(ids):
        ids = _numbers(image_ids, votes, dataset)
    settings = (votes.provenance.get("model") or {}).get("preprocessing")
    preprocessing = Preprocessing.from_json(settings) if settings else Preprocessing(votes.image_size)
    return Pictures(dataset, preprocessing.prepare, ids)


def _dataset(votes: VotesSource, data: str | None, split: str | None) -> Dataset | None:
    from costcert.datasets.arrays import ArrayDataset
    from costcert.datasets.parse import parse_dataset
    from costcert.store.parquet import read_npz

    if data is None and votes.path.suffix == ".npz" and not votes.path.is_dir():
        arrays = read_npz(votes.path)
        if "images" in arrays:
            ids = arrays.get("image_ids", range(votes.num_images))
            name = f"images in {votes.path.name}"
            return ArrayDataset(name, arrays["images"], arrays["truth"], ids=[str(each) for each in ids])
    known = str((votes.provenance.get("data") or {}).get("name"))
    # The sample is known also where only part of it voted.
    spelling = data or ("sample" if known.partition(" ")[0] == "sample" else None)
    return None if spelling is None else parse_dataset(spelling, split or "test")


def _numbers(image_ids: Collection[str], votes: VotesSource, dataset: Dataset) -> list[str]:
    """Ids by the order of the images, for votes whose images are only numbered."""
    numbers = [str(number) for number in range(votes.num_images)]
    if not set(image_ids).issubset(numbers):
        raise CostcertError(f"{dataset.name} has none of the images that voted: pass the data of these votes")
    if len(dataset) != votes.num_images:
        raise CostcertError(
            f"{dataset.name} has {len(dataset):,} images, but {votes.num_images:,} voted and have no ids: "
            "pass the images that voted, in their order"
        )
    truth = votes.shard(0).truth
    if (dataset.labels[: len(truth)] != truth).any():
        raise CostcertError(
            f"the labels of {dataset.name} are not those of the votes, whose images have no ids: pass the "
            "images that voted, in their order"
        )
    return numbers
