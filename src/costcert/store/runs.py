"""A run, reopened: votes, certificates of them, and the classifier both are about, in one place.

Certificates note the digest of their votes. Here, where both are opened, the two are compared, so that
nothing is ever shown, reported or deployed on the strength of certificates that came from other votes.
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
    """A folder of votes, and the certificates that came from it where there are any."""

    votes: VotesFolder
    certificates: CertificatesFolder | None = None

    @property
    def classifier(self) -> Defence:
        """Which ballots count, and how ties go; certificates may be of several defenders."""
        return self.votes.classifier if self.certificates is None else self.certificates.classifier

    def classifier_by(self, defender: str | None = None, patch: Patch | str | int | None = None) -> Defence:
        """The one classifier of a defender, for the patch it masks for, if it masks.

        Args:
            defender: of those that were certified; CostCert, or the only one, by default.
            patch: of those that were certified; the only one by default.
        """
        certificates = self.certificates
        names = (
            ["costcert"] if certificates is None else list(dict.fromkeys(d for d, _ in certificates.cases))
        )
        if defender is None:
            defender = "costcert" if "costcert" in names else names[0]
        if certificates is not None and defender not in names:
            raise CostcertError(
                f"{defender} was not certified there, only {', '.join(names)}: name one of them"
            )
        chosen = replace(self.classifier, defender=defender)
        if not find(defender).masks or chosen.mask is not None:
            return chosen
        known = [] if certificates is None else list(dict.fromkeys(patch for _, patch in certificates.cases))
        if patch is None and len(known) != 1:
            raise CostcertError(
                f"{defender} predicts by masking a patch: say which, as in "
                f"{known[0] if known else 'square:32'}"
            )
        mask = concrete(known[0] if patch is None else patch, self.votes.image_size)
        if known and mask not in known:
            raise CostcertError(
                f"{mask} was not certified there, only {', '.join(map(str, known))}: name one of them"
            )
        return replace(chosen, mask=mask)


def open_run(path: str | Location, votes: str | Location | None = None) -> Run:
    """Votes, or certificates and the votes they came from.

    Args:
        path: a folder of votes or of certificates.
        votes: where the votes of certificates are; a folder `votes` beside them by default.
    """
    path = locate(path)
    content = read_json(path / MANIFEST) if (path / MANIFEST).is_file() else {}
    if not isinstance(content, dict) or content.get("format") != "costcert certificates":
        if votes is not None:
            raise CostcertError(f"{path} holds no certificates, so it has no votes elsewhere: leave them out")
        return Run(VotesFolder(path))
    beside = path.parent / "votes" if votes is None else locate(votes)
    if votes is None and not beside.is_dir():
        raise CostcertError(f"{path} holds certificates: say with --votes where their ballots are")
    return Run(VotesFolder(beside), certificates_of(path, VotesFolder(beside)))


def certificates_of(path: str | Location, votes: VotesFolder) -> CertificatesFolder:
    """Certificates that came from these very votes."""
    certificates = CertificatesFolder(path)
    noted = certificates.manifest.get("votes_digest")
    if noted is None:
        raise StoreError(
            f"{certificates.folder} does not note by a digest which votes it came from: certify "
            f"{votes.folder} again, or write_certificates(..., votes={str(votes.folder)!r})"
        )
    if noted != votes.digest():
        raise StoreError(
            f"{votes.folder} is not what {certificates.folder} was made from (their digests differ): pass "
            "the votes that were certified"
        )
    return certificates
