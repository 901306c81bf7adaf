"""Votes and certificates in any form: a folder, a URL, or one file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costcert.certification.certificates import Certificates
from costcert.errors import CostcertError, StoreError
from costcert.geometry.ablations import Ablation, parse_ablation
from costcert.geometry.sizes import ImageSize
from costcert.store.certificates import (
    CertificatesFolder,
    CertificatesSource,
    certificates_manifest,
    write_certificates_folder,
)
from costcert.store.exports import EXPORTS, CertificatesFile, Export
from costcert.store.files import MANIFEST, read_json
from costcert.store.folder_names import refuse_file_name
from costcert.store.locations import Location, fetched, locate
from costcert.store.parquet import has_column, shard_ranges
from costcert.store.vote_files import READ, WRITTEN, VotesFile, write_votes_file
from costcert.store.votes import VotesFolder, VotesSource, votes_manifest, write_votes_folder
from costcert.votes.table import Votes, check_votes


def open_votes(
    path: str | Location,
    *,
    ablation: str | Ablation | None = None,
    classes: int | None = None,
    image_size: ImageSize | int | str | None = None,
) -> VotesSource:
    """Votes that are read a shard at a time.

    Args:
        path: a folder, or an `.npz`, `.parquet`, `.csv` or `.json` file.
        ablation: what each mutant kept, where the votes do not record it. Votes that record it keep theirs:
            `certify` selects some of their mutants by another one, `read_votes` and `open_run` refuse others.
        classes: the number of classes, where a file does not record it.
        image_size: the size of the model's input, where a file does not record it.
    """
    path = locate(path)
    if path.is_dir():
        for option, value in (("--classes", classes), ("--image-size", image_size)):
            if value is not None:
                raise CostcertError(
                    f"{option} is for votes in one file: {path} is a folder, which records it"
                )
        return VotesFolder(path)
    return VotesFile(path, ablation=ablation, num_classes=classes, image_size=image_size)


def open_described(
    path: str | Location,
    *,
    ablation: str | Ablation | None = None,
    classes: int | None = None,
    image_size: ImageSize | int | str | None = None,
) -> VotesSource:
    """As `open_votes`; an ablation other than the recorded one is refused."""
    votes = open_votes(path, ablation=ablation, classes=classes, image_size=image_size)
    wanted = parse_ablation(ablation) if isinstance(ablation, str) else ablation
    if wanted is not None and wanted != votes.ablation:
        raise CostcertError(
            f"{path} holds votes of {votes.ablation}, but --ablation is {wanted}: leave that option out"
        )
    return votes


def read_votes(
    path: str | Location,
    *,
    ablation: str | Ablation | None = None,
    num_classes: int | None = None,
    image_size: ImageSize | int | str | None = None,
) -> Votes:
    """All votes of a folder, a URL or a file in memory; `open_votes` reads them a shard at a time.

    Args:
        path: a folder, or an `.npz`, `.parquet`, `.csv` or `.json` file.
        ablation: what each mutant kept; needed, as the next two, for a file that does not record it.
    """
    return joined_votes(open_described(path, ablation=ablation, classes=num_classes, image_size=image_size))


def joined_votes(source: VotesSource) -> Votes:
    """All votes of a source in memory."""
    return Votes.joined([source.shard(number) for number in range(source.num_shards)])


def write_votes(
    votes: Votes, path: str | Location, *, shard_size: int | None = None, overwrite: bool = False
) -> None:
    """Write votes to a folder or a URL, or to one `.npz`, `.parquet` or `.json` file with their description.

    A folder that holds a part of the same votes is completed.

    Args:
        shard_size: images per shard of a folder.
        overwrite: replace other votes there; by default they are refused.
    """
    check_votes(votes)
    path = locate(path)
    if path.suffix not in READ or path.is_dir():
        refuse_file_name(path, "votes are", WRITTEN)
        write_votes_folder(votes, path, shard_size=shard_size, overwrite=overwrite)
    elif path.suffix not in WRITTEN:
        raise CostcertError(
            f"{path} could not record how its votes were made: write them to a folder, or to a file that "
            f"ends in {', '.join(WRITTEN)}"
        )
    elif path.exists() and not overwrite:
        raise CostcertError(f"{path} exists: choose another name, or pass overwrite=True")
    else:
        write_votes_file(votes, path)


def holds_certificates(path: Location) -> bool:
    """Whether these are certificates, as far as a folder's manifest or a file's columns tell."""
    if path.is_dir():
        content = read_json(path / MANIFEST) if (path / MANIFEST).is_file() else {}
        return isinstance(content, dict) and content.get("format") == "costcert certificates"
    if path.suffix not in EXPORTS or not path.is_file():
        return False
    if path.suffix == ".json":
        content = read_json(path)
        return isinstance(content, dict) and "certificates" in content
    if path.suffix == ".parquet":
        return has_column(path, "min_k")
    with fetched(path) as copy, copy.open("rb") as file:
        return b"min_k" in file.readline(1 << 20)


def open_certificates(path: str | Location) -> CertificatesSource:
    """Certificates that are read a shard at a time, from a folder or a `.parquet`, `.csv` or `.json` file."""
    path = locate(path)
    if not path.is_file():
        return CertificatesFolder(path)
    if path.suffix not in EXPORTS:
        raise StoreError(
            f"{path} is not a folder of certificates, and certificates in one file end in "
            f"{', '.join(EXPORTS)}"
        )
    return CertificatesFile(path)


def read_certificates(path: str | Location) -> Certificates:
    """All certificates of a folder, a URL, or a `.parquet`, `.csv` or `.json` file at once."""
    return Certificates.joined(list(open_certificates(path).shards()))


def write_certificates(
    certificates: Certificates,
    path: str | Location,
    *,
    votes: Votes | str | Location | None = None,
    overwrite: bool = False,
) -> None:
    """Write certificates to a folder, a URL, or a `.parquet`, `.csv` or `.json` file.

    Args:
        votes: the votes that were certified. Pass the folder or the file they were written to, and the
            manifest records its digest, which `check`, `explore` and `report --votes` need.
        overwrite: replace other certificates there; by default they are refused.
    """
    given: Any = certificates
    if not isinstance(given, Certificates):
        raise CostcertError(f"certificates must be what certify returns, got {given!r}")
    path = locate(path)
    manifest = _manifest_of(certificates, votes)
    if path.suffix not in EXPORTS or path.is_dir():
        refuse_file_name(path, "certificates are", tuple(EXPORTS))
        write_certificates_folder(certificates, path, manifest, overwrite=overwrite)
        return
    if path.exists() and not overwrite:
        raise CostcertError(f"{path} exists: choose another name, or pass overwrite=True")
    with Export(path, manifest) as export:
        for images in shard_ranges(len(certificates), int(manifest["votes"]["shard_size"])):
            export.add(certificates.select(slice(images.start, images.stop)))
        export.finish(certificates.accuracy())


def _manifest_of(certificates: Certificates, votes: Votes | str | Location | None) -> dict[str, Any]:
    """The manifest of certificates that were derived from these votes."""
    images = {"images": len(certificates), "shard_size": len(certificates)}
    digest = None
    if votes is None:
        source: Mapping[str, Any] = {
            "image_size": list(certificates.image_size),
            "num_classes": certificates.num_classes,
            **images,
        }
    elif isinstance(votes, Votes):
        source = votes_manifest(votes, **images)
    else:
        classifier = certificates.classifier
        described: dict[str, Any] = (
            {}
            if locate(votes).is_dir()
            else {
                "ablation": classifier.ablation,
                "classes": certificates.num_classes,
                "image_size": certificates.image_size,
            }
        )
        written = open_votes(votes, **described)
        source, digest = written.manifest, written.digest()
        if written.num_images != len(certificates):
            raise StoreError(
                f"{written.path} holds votes of {written.num_images} images, but these are certificates "
                f"of {len(certificates)}: pass the votes they came from"
            )
    return certificates_manifest(
        source,
        digest,
        certificates.classifier,
        defenders=certificates.defenders,
        patches=[str(patch) for patch in certificates.patches],
        **certificates.metadata,
    )
