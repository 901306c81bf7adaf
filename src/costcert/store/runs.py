"""Reopens a run: its votes, the certificates derived from them, and the classifier that both describe.

Certificates record the digest of their votes. It is compared here, where both are opened, so that
certificates of other votes are never shown, reported or deployed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from costcert.defenders import find
from costcert.errors import CostcertError, StoreError
from costcert.geometry.patches import Patch, concrete
from costcert.store.certificates import CertificatesFolder
from costcert.store.files import MANIFEST, read_json
from costcert.store.locations import Location, locate
from costcert.store.votes import VotesFolder
from costcert.votes.defence import Defence


@dataclass(frozen=True)
class Run:
    """A folder of votes and, if there are any, the certificates derived from them."""

    votes: VotesFolder
    certificates: CertificatesFolder | None = None

    @property
    def classifier(self) -> Defence:
        """What was certified, or what voted; without a defender, as certificates may have several."""
        return self.votes.classifier if self.certificates is None else self.certificates.classifier

    def classifier_by(self, defender: str | None = None, patch: Patch | str | int | None = None) -> Defence:
        """The classifier with one defender and, if that defender masks, the patch it masks for.

        Args:
            defender: one that was certified; by default costcert, or else the first.
            patch: one that was certified; may be left out if there is only one.
        """
        certificates = self.certificates
        keys = [] if certificates is None else certificates.keys
        names = list(dict.fromkeys(name for name, _ in keys)) or ["costcert"]
        if defender is None:
            defender = "costcert" if "costcert" in names else names[0]
        if certificates is not None and defender not in names:
            raise CostcertError(f"{defender} was not certified, only {', '.join(names)}: name one of them")
        chosen = replace(self.classifier, defender=defender)
        if not find(defender).masks or chosen.mask is not None:
            return chosen
        certified = list(dict.fromkeys(patch for _, patch in keys))
        if patch is None and len(certified) != 1:
            example = certified[0] if certified else "square:32"
            raise CostcertError(f"{defender} predicts by masking a patch: say which, as in {example}")
        mask = concrete(certified[0] if patch is None else patch, self.votes.image_size)
        if certified and mask not in certified:
            shown = ", ".join(map(str, certified))
            raise CostcertError(f"{mask} was not certified, only {shown}: name one of them")
        return replace(chosen, mask=mask)


def open_run(path: str | Location, votes: str | Location | None = None) -> Run:
    """Open a folder of votes, or a folder of certificates together with its votes.

    Args:
        path: a folder of votes or of certificates.
        votes: the votes of the certificates; by default the folder `votes` next to them.
    """
    path = locate(path)
    content = read_json(path / MANIFEST) if (path / MANIFEST).is_file() else {}
    if not isinstance(content, dict) or content.get("format") != "costcert certificates":
        if votes is not None:
            raise CostcertError(f"{path} does not hold certificates: leave --votes out")
        return Run(VotesFolder(path))
    votes_path = path.parent / "votes" if votes is None else locate(votes)
    if votes is None and not votes_path.is_dir():
        raise CostcertError(f"{path} holds certificates, but no folder of votes is next to it: pass --votes")
    opened = VotesFolder(votes_path)
    return Run(opened, certificates_of(path, opened))


def certificates_of(path: str | Location, votes: VotesFolder) -> CertificatesFolder:
    """The certificates in a folder; raises if they were not derived from these votes."""
    certificates = CertificatesFolder(path)
    recorded = certificates.manifest.get("votes_digest")
    if recorded is None:
        raise StoreError(
            f"{certificates.folder} does not record the digest of its votes: certify {votes.folder} again, "
            f"or write_certificates(..., votes={str(votes.folder)!r})"
        )
    if recorded != votes.digest():
        raise StoreError(
            f"{votes.folder} does not hold the votes that {certificates.folder} was made from (their digests "
            "differ): pass the votes that were certified"
        )
    return certificates
