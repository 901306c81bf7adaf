"""Patches on original pictures: which images can be treated together, and what is touched.

Votes record how large each picture was and how the model prepares pictures. Where all pictures have one size
a patch has one set of footprints; otherwise images are treated size by size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from costcert.errors import CostcertError, GeometryError, VotesError
from costcert.geometry.footprints import Footprint, footprint
from costcert.geometry.patches import Certified, OnePatch, Original, Piece, Several
from costcert.geometry.preparation import Preparation
from costcert.geometry.sizes import ImageSize
from costcert.geometry.touch import Touched, touched
from costcert.votes.table import Votes

Images = npt.NDArray[np.int64]
OnInput = OnePatch | Several | Footprint


class SameSize(NamedTuple):
    """The images whose originals have one size: how many there are, and the first of them."""

    images: int
    first: str


def sizes_of_originals(
    image_ids: npt.NDArray[np.str_],
    originals: npt.NDArray[np.int64],
    unread: npt.NDArray[np.bool_] | None = None,
) -> dict[ImageSize, SameSize]:
    """The sizes of the images that were read, in the order of their first images."""
    read = np.arange(len(originals)) if unread is None else np.flatnonzero(~unread)
    distinct, first, counts = np.unique(originals[read], axis=0, return_index=True, return_counts=True)
    return {
        (int(distinct[n][0]), int(distinct[n][1])): SameSize(int(counts[n]), str(image_ids[read[first[n]]]))
        for n in np.argsort(first)
    }


def refuse_unfit(
    patches: Iterable[Any], preparation: Preparation, sizes: Mapping[ImageSize, SameSize]
) -> None:
    """Raise if a patch cannot be followed on pictures of some of these sizes; the first image is named."""
    total = sum(same.images for same in sizes.values())
    for patch in patches:
        unfit: list[tuple[SameSize, GeometryError]] = []
        for size, same in sizes.items() if isinstance(patch, Original) else ():
            try:
                footprint(patch, size, preparation)
            except GeometryError as error:
                unfit.append((same, error))
        if unfit:
            count = sum(same.images for same, _ in unfit)
            raise naming_images(unfit[0][1], unfit[0][0].first, count, total)


def naming_images(error: CostcertError, first: str, count: int, total: int) -> CostcertError:
    """The error with the images that it is about, unless these are all."""
    if count == total:
        return error
    more = f" and {count - 1:,} more" if count > 1 else ""
    return type(error)(f"image {first}{more} of {total:,}: {error}, or leave such images out")


def of_one_size(votes: Votes, patches: Iterable[Any]) -> list[Images]:
    """The images of each size of the originals; all together if none of the patches is on the original.

    Images that could not be read count as wrong anyway, and belong to the first group.
    """
    everything = np.arange(len(votes))
    original = next((patch for patch in patches if isinstance(patch, Original)), None)
    if original is None:
        return [everything]
    sizes = _sizes(votes, original)
    read = np.flatnonzero(_read(votes))
    if not len(read):
        return [everything]
    distinct, group = np.unique(sizes[read], axis=0, return_inverse=True)
    groups = [read[group.ravel() == number] for number in range(len(distinct))]
    unread = np.setdiff1d(everything, read)
    return [np.union1d(groups[0], unread), *groups[1:]]


def refuse_unfit_votes(votes: Votes, patches: Iterable[Any]) -> None:
    """The same for the images of these votes."""
    for patch in patches:
        if isinstance(patch, Original):
            sizes = sizes_of_originals(votes.image_ids, _sizes(votes, patch), votes.unread)
            refuse_unfit([patch], preparation_of(votes, patch), sizes)


def naming_group(error: CostcertError, votes: Votes, group: Images) -> CostcertError:
    """The error with the images of a group of `of_one_size`."""
    read = _read(votes)
    its_own = group[read[group]]
    if not len(its_own):
        return error
    return naming_images(error, str(votes.image_ids[its_own[0]]), len(its_own), int(read.sum()))


def on_input(votes: Votes, patch: Certified) -> OnInput:
    """The patch at the input of the model, for images whose originals have one size."""
    if not isinstance(patch, Original):
        return patch
    sizes = np.unique(_sizes(votes, patch)[_read(votes)], axis=0)
    if len(sizes) != 1:
        raise VotesError(
            f"{patch} reaches another part of the input for each size of the originals, and these images "
            f"have {len(sizes)} sizes: take images of one size, or use certify"
        )
    height, width = sizes[0].tolist()
    return footprint(patch, (height, width), preparation_of(votes, patch))


def touched_by(votes: Votes, patch: Certified) -> Touched:
    """The touched sets of a patch, for images whose originals have one size."""
    if isinstance(patch, Original) and not _read(votes).any():
        return Touched.nothing(votes.num_mutants)
    return touched(votes.ablation, on_input(votes, patch), votes.image_size)


def reached(votes: Votes, patch: Certified, places: Iterable[tuple[int, int]]) -> list[Piece]:
    """The rectangles of the input that a patch can change from these places, by their top and left there."""
    found = on_input(votes, patch)
    if isinstance(found, Footprint):
        return [piece for top, left in places for piece in found.rectangles(top, left)]
    single = found.patch.at(votes.image_size) if isinstance(found, Several) else found
    return [
        piece._replace(top=top + piece.top, left=left + piece.left)
        for top, left in places
        for piece in single.pieces()
    ]


def preparation_of(votes: Recorded, patch: Original) -> Preparation:
    """How pictures became the model's input, as the votes record it."""
    recorded = (votes.provenance.get("model") or {}).get("preprocessing")
    if not recorded:
        raise VotesError(
            f"{patch} is a patch on the original picture, but how pictures became these inputs is not "
            "recorded: vote on pictures instead of normalised floats, with a classifier that has a "
            "`preparation`, or name a patch on the input, such as square:2"
        )
    preparation = Preparation.from_json(recorded)
    size: ImageSize = votes.image_size
    if preparation.image_size != size:
        raise VotesError(f"the preprocessing of these votes makes {preparation.image_size}, not {size}")
    return preparation


class Recorded(Protocol):
    """Votes in memory or on disk, with what they record of how they were made."""

    @property
    def provenance(self) -> Mapping[str, Any]: ...

    @property
    def image_size(self) -> ImageSize: ...


def _sizes(votes: Votes, patch: Original) -> npt.NDArray[np.int64]:
    preparation_of(votes, patch)
    if votes.originals is None:
        raise VotesError(
            f"{patch} is a patch on the original picture, but these votes do not record how large the "
            "originals were: vote again with this version and a classifier that has a `preparation`, or name "
            "a patch on the input, such as square:2"
        )
    if (votes.originals[_read(votes)] < 1).any():
        raise VotesError("these votes record originals without pixels, though they were read: vote again")
    return votes.originals


def _read(votes: Votes) -> npt.NDArray[np.bool_]:
    """[N], the images that were read."""
    return np.ones(len(votes), np.bool_) if votes.unread is None else ~votes.unread
