"""Certificates on disk: one shard per shard of votes, and a manifest that names those votes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from costcert import __version__
from costcert.certification.certificates import Certificates
from costcert.errors import CostcertError, StoreError
from costcert.geometry.patches import parse_patch
from costcert.geometry.sizes import as_image_size
from costcert.store.digests import Shards
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
from costcert.votes.defence import Defence

VERSION = 2


def certificates_manifest(
    votes: Mapping[str, Any],
    votes_digest: str | None,
    classifier: Defence,
    *,
    defenders: list[str],
    patches: list[str],
    **options: Any,
) -> dict[str, Any]:
    """The manifest of a folder of certificates: what was certified, and the votes it was derived from."""
    return {
        "format": "costcert certificates",
        "version": VERSION,
        "costcert": __version__,
        "classifier": classifier.to_json(),
        "defenders": defenders,
        "patches": patches,
        **options,
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


def write_certificates_folder(
    certificates: Certificates, folder: Location, manifest: Mapping[str, Any], *, overwrite: bool = False
) -> None:
    """Write certificates to a folder or a URL.

    Args:
        overwrite: remove other certificates in the folder; by default they are refused.
    """
    if overwrite:
        clear(folder, "certificates")
    target = begin_certificates(folder, manifest)
    missing = target.missing()
    for number in range(target.num_shards):
        rows = target.images(number)
        part = certificates.select(slice(rows.start, rows.stop))
        if number in missing:
            target.write(part, number)
        else:
            refuse_other(certificates_table(part), shard_path(folder, number))
    target.seal(missing)


def begin_certificates(folder: Location, manifest: Mapping[str, Any]) -> CertificatesFolder:
    """A new folder with this manifest, or an unfinished one with the same manifest, to be completed."""
    join_manifest(folder, manifest, "certificates", VERSION)
    sweep(folder)
    return CertificatesFolder(folder)


class CertificatesSource:
    """Certificates that are read a shard at a time, and compared with their manifest.

    They have one shard per shard of the votes, so that a shard of them is made from one shard of votes.

    Args:
        path: a folder or a file.
        manifest: without digests.
        where: the file that holds the manifest, for error messages.
    """

    def __init__(self, path: Location, manifest: Mapping[str, Any], where: str) -> None:
        self.path, self.manifest = path, manifest
        votes = manifest.get("votes")
        if not isinstance(votes, dict):
            raise StoreError(f"{where} is damaged: it does not name the votes that were certified")
        self.num_classes = positive(votes, "num_classes", where)
        self._ranges = shard_ranges(positive(votes, "images", where), positive(votes, "shard_size", where))
        self.num_shards = len(self._ranges)
        self.classifier = Defence.from_json(manifest.get("classifier"), where)
        try:
            self.image_size = as_image_size(tuple(votes.get("image_size", ())))
            self.keys = [
                (str(defender), parse_patch(patch))
                for defender in manifest["defenders"]
                for patch in manifest["patches"]
            ]
        except (CostcertError, KeyError, TypeError) as error:
            raise StoreError(f"{where} is damaged: {error}") from None

    def images(self, number: int) -> range:
        """The images of a shard."""
        return self._ranges[number]

    def shards(self) -> Iterator[Certificates]:
        for number in range(self.num_shards):
            yield self.shard(number)

    def shard(self, number: int) -> Certificates:
        raise NotImplementedError

    def _certificates(self, table: Any, number: int, path: Location) -> Certificates:
        """The rows of a shard; raises if they are not what the manifest says. Errors name `path`."""
        images = len(self._ranges[number])
        if table.num_rows != images * len(self.keys):
            raise StoreError(
                f"{path} holds {table.num_rows} certificates, expected {images * len(self.keys)}: "
                "make it again"
            )
        columns = {name: plain_column(table, name, path) for name in table.column_names}
        results = {}
        for index, (defender, patch) in enumerate(self.keys):
            rows = slice(index * images, (index + 1) * images)
            try:
                fits = (columns["defender"][rows] == defender).all()
                fits = fits and (columns["patch"][rows] == str(patch)).all()
                fits = fits and (columns["image_id"][rows] == columns["image_id"][:images]).all()
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


class CertificatesFolder(CertificatesSource):
    """A folder of certificates, read and written a shard at a time; a sealed shard is verified when read."""

    def __init__(self, folder: str | Location) -> None:
        self.folder = locate(folder)
        sealed = read_sealed(self.folder, "certificates", VERSION)
        super().__init__(self.folder, sealed.content, str(self.folder / MANIFEST))
        self._shards = Shards(self.folder, sealed, self.num_shards)

    def missing(self) -> list[int]:
        """Numbers of the shards that are not written yet."""
        return missing_shards(self.folder, self.num_shards)

    def write(self, certificates: Certificates, number: int) -> None:
        write_table(certificates_table(certificates), shard_path(self.folder, number))

    def seal(self, made: Collection[int]) -> None:
        """Write the digests of a complete folder; `made` are the shards that this run wrote."""
        self._shards.seal(made)

    def shard(self, number: int) -> Certificates:
        path = shard_path(self.folder, number)
        if not path.exists():
            raise StoreError(f"{path} is missing: run certify again to complete {self.folder}")
        return self._certificates(self._shards.read(number), number, path)
