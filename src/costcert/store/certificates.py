"""Certificates on disk: one shard per shard of votes, beside a manifest that names those votes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from costcert import __version__
from costcert.certification.certificates import Certificates
from costcert.errors import CostcertError, StoreError
from costcert.geometry.patches import parse_patch
from costcert.geometry.sizes import as_image_size
from costcert.store.digests import Shards, seal
from costcert.store.files import MANIFEST, clear, join_manifest, read_sealed, sweep
from costcert.store.locations import Location, locate
from costcert.store.parquet import (
    missing_shards,
    plain_column,
    positive,
    refuse_other,
    shard_path,
    shard_ranges,
    write_table,
)
from costcert.store.votes import VotesFolder, votes_manifest
from costcert.votes.defence import Defence
from costcert.votes.table import Votes

VERSION = 2


class CertificatesPlan(NamedTuple):
    """A folder of certificates in the making: one shard per shard of votes."""

    folder: Location
    num_shards: int

    @classmethod
    def begin(cls, folder: Location, manifest: Mapping[str, Any], num_shards: int) -> CertificatesPlan:
        join_manifest(folder, manifest, "certificates", VERSION)
        sweep(folder)
        return cls(folder, num_shards)

    def missing(self) -> list[int]:
        """Shards that are not there yet."""
        return missing_shards(self.folder, self.num_shards)

    def finished(self) -> Iterator[Certificates]:
        """All certificates, read back once every shard is there."""
        yield from CertificatesFolder(self.folder).shards()

    def write(self, certificates: Certificates, number: int) -> None:
        write_table(certificates_table(certificates), shard_path(self.folder, number))

    def seal(self, made: Collection[int]) -> None:
        """Note the digests of a complete folder, of which this run made these shards."""
        seal(self.folder, self.num_shards, made)


def certificates_manifest(
    votes: Mapping[str, Any],
    votes_digest: str | None,
    classifier: Defence,
    *,
    defenders: list[str],
    patches: list[str],
    **asked: Any,
) -> dict[str, Any]:
    """What a folder of certificates says of itself: what they are about, and the votes they came from."""
    return {
        "format": "costcert certificates",
        "version": VERSION,
        "costcert": __version__,
        "classifier": classifier.to_json(),
        "defenders": defenders,
        "patches": patches,
        **asked,
        "votes": dict(votes),
        "votes_digest": votes_digest,
    }


def certificates_table(certificates: Certificates) -> Any:
    """Table 2: image_id, defender, patch, rank, min_k."""
    names = pa.array(certificates.image_ids.tolist(), pa.string())
    parts = []
    for defender, patch in certificates.keys:
        parts.append(
            pa.table(
                {
                    "image_id": names,
                    "defender": pa.repeat(pa.scalar(defender), len(certificates)),
                    "patch": pa.repeat(pa.scalar(str(patch)), len(certificates)),
                    "rank": certificates.rank(defender, patch).astype(np.int32),
                    "min_k": certificates.min_k(defender, patch).astype(np.int32),
                }
            )
        )
    return pa.concat_tables(parts)


def write_certificates(
    certificates: Certificates,
    folder: str | Location,
    *,
    votes: Votes | str | Location | None = None,
    overwrite: bool = False,
) -> None:
    """Write certificates to a folder or a URL as one shard.

    Args:
        votes: what they came from. With the folder it was written to, the certificates note its digest, which
            whatever reads both compares; `check`, `explore` and `report --votes` need that.
        overwrite: remove other certificates that are there; by default they are refused.
    """
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
        written = VotesFolder(votes)
        source, digest = written.manifest, written.digest()
        if written.num_images != len(certificates):
            raise StoreError(
                f"{written.folder} are votes of {written.num_images} images, these certificates "
                f"of {len(certificates)}: pass the votes they came from"
            )
    manifest = certificates_manifest(
        source,
        digest,
        certificates.classifier,
        defenders=certificates.defenders,
        patches=[str(patch) for patch in certificates.patches],
        **certificates.metadata,
    )
    folder = locate(folder)
    if overwrite:
        clear(folder, "certificates")
    # As many shards as the votes have, so that one shard is made of one shard.
    ranges = shard_ranges(int(source["images"]), int(source["shard_size"]))
    plan = CertificatesPlan.begin(folder, manifest, len(ranges))
    missing = plan.missing()
    for number, rows in enumerate(ranges):
        part = certificates.select(slice(rows.start, rows.stop))
        if number in missing:
            plan.write(part, number)
        else:
            refuse_other(certificates_table(part), shard_path(folder, number))
    plan.seal(missing)


def read_certificates(folder: str | Location) -> Certificates:
    """All certificates of a folder or a URL at once."""
    return Certificates.joined(list(CertificatesFolder(folder).shards()))


class CertificatesFolder:
    """A folder of certificates, read a shard at a time; every byte is compared with its digest on the way."""

    def __init__(self, folder: str | Location) -> None:
        self.folder = locate(folder)
        sealed = read_sealed(self.folder, "certificates", VERSION)
        self.manifest = sealed.content
        where = str(self.folder / MANIFEST)
        votes = self.manifest.get("votes")
        if not isinstance(votes, dict):
            raise StoreError(f"{where} is damaged: it does not say which votes were certified")
        self.num_classes = positive(votes, "num_classes", where)
        self._ranges = shard_ranges(positive(votes, "images", where), positive(votes, "shard_size", where))
        self._shards = Shards(self.folder, sealed, len(self._ranges))
        self.classifier = Defence.from_json(self.manifest.get("classifier"), where)
        try:
            self.image_size = as_image_size(tuple(votes.get("image_size", ())))
            self.cases = [
                (str(defender), parse_patch(patch))
                for defender in self.manifest["defenders"]
                for patch in self.manifest["patches"]
            ]
        except (CostcertError, KeyError, TypeError) as error:
            raise StoreError(f"{where} is damaged: {error}") from None

    def shards(self) -> Iterator[Certificates]:
        for number in range(len(self._ranges)):
            yield self.shard(number)

    def shard(self, number: int) -> Certificates:
        path = shard_path(self.folder, number)
        if not path.exists():
            raise StoreError(f"{path} is missing: run certify again to complete {self.folder}")
        table = self._shards.read(number)
        images = len(self._ranges[number])
        if table.num_rows != images * len(self.cases):
            raise StoreError(
                f"{path} holds {table.num_rows} certificates, expected {images * len(self.cases)}: "
                "make it again"
            )
        columns = {name: plain_column(table, name, path) for name in table.column_names}
        results = {}
        for index, (defender, patch) in enumerate(self.cases):
            rows = slice(index * images, (index + 1) * images)
            try:
                fits = (columns["defender"][rows] == defender).all()
                fits = fits and (columns["patch"][rows] == str(patch)).all()
                rank, min_k = (columns[name][rows].astype(np.int64) for name in ("rank", "min_k"))
                fits = fits and bool((rank >= 1).all() and (min_k <= self.num_classes).all())
                fits = fits and bool((rank <= min_k).all())
                image_ids = columns["image_id"][:images].astype(np.str_)
            except (KeyError, ValueError, TypeError):
                fits = False
            if not fits:
                raise StoreError(f"{path} does not fit its manifest: make it again")
            results[defender, patch] = (rank, min_k)
        return Certificates(
            results,
            image_ids=image_ids,
            num_classes=self.num_classes,
            image_size=self.image_size,
            classifier=self.classifier,
            metadata={key: self.manifest[key] for key in ("epsilon", "tau") if key in self.manifest},
        )
