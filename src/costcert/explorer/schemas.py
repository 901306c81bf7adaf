"""Requests and responses of the service, validated and documented."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from costcert.explorer.limits import MAX_IMAGE_SIDE, MAX_MUTANTS
from costcert.geometry.preparation import LARGEST_ORIGINAL

Label = Annotated[int, Field(ge=0, lt=1 << 24)]
PatchText = Annotated[str, Field(min_length=1, max_length=40, examples=["square:4", "original:2"])]
Ballot = Annotated[list[Label], Field(max_length=64)]
Units = Annotated[list[Annotated[int, Field(ge=0, le=1 << 30)]], Field(max_length=64)]

MAX_PATCHES = 8


class Problem(BaseModel):
    """Why a request was refused, in a sentence."""

    detail: str


class Health(BaseModel):
    status: Literal["ok"]
    version: str
    images: int
    model: bool


class CertifyRequest(BaseModel):
    """Ballots to certify: of an image of this run, or in the request."""

    model_config = ConfigDict(extra="forbid", strict=True)

    image: Annotated[str | None, Field(max_length=4096, description="The id of an image of this run.")] = None
    ballots: Annotated[
        list[Label] | None, Field(max_length=MAX_MUTANTS, description="The label each mutant votes for.")
    ] = None
    labels: Annotated[
        list[Ballot] | None,
        Field(max_length=MAX_MUTANTS, description="Soft ballots: the labels of each mutant."),
    ] = None
    units: Annotated[
        list[Units] | None,
        Field(max_length=MAX_MUTANTS, description="Soft ballots: the units of each of these labels."),
    ] = None
    cap: Annotated[
        int | None, Field(ge=1, le=1 << 30, description="Soft ballots: maximum units per mutant.")
    ] = None
    label: Annotated[
        Label | None,
        Field(description="The label to certify; for an image of this run its true label by default."),
    ] = None
    patches: Annotated[list[PatchText], Field(min_length=1, max_length=MAX_PATCHES)]
    defenders: Annotated[
        list[Annotated[str, Field(max_length=64)]] | None, Field(min_length=1, max_length=16)
    ] = None
    ties: Literal["against", "lowest"] | None = None
    view: Literal["hard", "soft"] | None = None
    attack: Annotated[bool, Field(description="Whether to also search for the strongest attack.")] = False
    ablation: Annotated[
        str | None, Field(max_length=200, description="How the mutants were made; by default as in this run.")
    ] = None
    image_size: Annotated[
        list[Annotated[int, Field(ge=1, le=MAX_IMAGE_SIDE)]] | None,
        Field(min_length=2, max_length=2, description="Height and width; by default as in this run."),
    ] = None
    original: Annotated[
        list[Annotated[int, Field(ge=1, le=LARGEST_ORIGINAL)]] | None,
        Field(
            min_length=2,
            max_length=2,
            description="Height and width of the picture before it was prepared, for patches on it.",
        ),
    ] = None
    num_classes: Annotated[int | None, Field(ge=1, le=1 << 20)] = None

    @model_validator(mode="after")
    def _one_source(self) -> CertifyRequest:
        given = [self.image is not None, self.ballots is not None, self.labels is not None]
        if sum(given) != 1:
            raise ValueError("give one of: image, ballots, or labels with units")
        if (self.labels is None) != (self.units is None):
            raise ValueError("soft ballots need both labels and units")
        if self.image is None and self.label is None:
            raise ValueError("ballots need a label to certify: pass label")
        return self


class RankAndMinK(BaseModel):
    rank: Annotated[int, Field(description="Position of the label in the defender's prediction.")]
    min_k: Annotated[
        int,
        Field(
            description="The smallest k for which the label stays in the top k; the number of classes "
            "promises nothing, because the list of all labels always contains it."
        ),
    ]


class Attack(BaseModel):
    """The place where a patch lifts the most rivals, and the position of the label after that attack."""

    top: Annotated[int, Field(description="In the original, for a patch on that.")]
    left: int
    position: int


class PatchCertificates(BaseModel):
    patch: str
    budget: Annotated[int, Field(description="Maximum number of mutants that the patch touches.")]
    defenders: dict[str, RankAndMinK]
    attack: Attack | None


class Certified(BaseModel):
    label: Annotated[
        int,
        Field(description="The label that the certificates hold for; of a picture it may be only predicted."),
    ]
    certificates: list[PatchCertificates]


class ImageVotes(BaseModel):
    """The votes of the mutants of one image."""

    image: str
    truth: int
    unread: bool
    original: Annotated[
        list[int] | None, Field(description="Height and width of the picture before it was prepared.")
    ]
    cap: int
    ballots: Annotated[list[int], Field(description="Labels; -1 for a mutant that was not evaluated.")]
    labels: list[list[int]] | None
    units: list[list[int]] | None
    unknown: Annotated[list[int], Field(description="Mutants whose ballots count as the attacker's.")]


class Ranked(BaseModel):
    label: int
    name: str | None
    votes: Annotated[
        float, Field(description="What it is ranked by: its votes, in ballots, or its score, of 1.")
    ]


class Prediction(BaseModel):
    top: list[Ranked]
    ranked_by: Annotated[
        Literal["votes", "score"],
        Field(description="The score is the least that a copy in the best row of masks gives to a label."),
    ]
    votes: dict[str, ImageVotes]
    picture: Annotated[str, Field(description="The pixels that the model sees, as a data: URL.")]


class AllRanks(BaseModel):
    rank: list[int]
    min_k: list[int]


class AllCertificates(BaseModel):
    patch: str
    budget: Annotated[
        int | None,
        Field(description="Maximum number of mutants that the patch touches; null for too many sizes."),
    ]
    defenders: dict[str, AllRanks]


Runs = Annotated[list[tuple[int, int]], Field(description="Start and length of each run.")]


class PatchFootprint(BaseModel):
    """What a patch on the original can change at the model's input, from each of its places."""

    patch: str
    original: Annotated[list[int], Field(description="Height and width of the picture as it comes.")]
    resized: Annotated[list[int], Field(description="The same after resizing, before it is cropped.")]
    corner: Annotated[list[int], Field(description="Top and left of the input in the resized picture.")]
    rows: Annotated[list[Runs], Field(description="Rows of the input that change, for each top.")]
    columns: Annotated[list[Runs], Field(description="Columns of the input that change, for each left.")]
    budget: Annotated[int, Field(description="Maximum number of mutants that the patch touches.")]


class Curve(BaseModel):
    """Shares of all images, for each k."""

    clean: list[float]
    clean_percent: Annotated[list[str], Field(description="The same in percent, rounded as in tables.")]
    certified: list[float]
    certified_percent: list[str]


class Accuracy(BaseModel):
    patch: str
    images: int
    k: list[int]
    defenders: dict[str, Curve]
