"""Reopens a run: its votes, the certificates derived from them, and the classifier that both describe.

Certificates record the digest of their votes. It is compared here, where both are opened, so that
certificates of other votes are never shown, reported or deployed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from costcert.defenders import default_for, find
from costcert.errors import CostcertError, StoreError
from costcert.geometry.ablations import Ablation
from costcert.geometry.patches import Patch, certified_patch
from costcert.geometry.sizes import ImageSize
from costcert.store.certificates import CertificatesSource
from costcert.store.digests import file_digest
from costcert.store.locations import Location, locate
from costcert.store.sources import holds_certificates, open_certificates, open_described
from costcert.store.votes import VotesSource
from costcert.votes.defence import Defence

# What options may say about the votes in a file.
_DESCRIBED = ("images", "classifier", "image_size", "num_classes")


@dataclass(frozen=True)
class Run:
    """Votes and, if there are any, the certificates derived from them."""

    votes: VotesSource
    certificates: CertificatesSource | None = None

    @property
    def classifier(self) -> Defence:
        """What was certified, or what voted; without a defender, as certificates may have several."""
        return self.votes.classifier if self.certificates is None else self.certificates.classifier

    def classifier_by(self, defender: str | None = None, patch: Patch | str | int | None = None) -> Defence:
        """The classifier with one defender and, if that defender masks, the patch it masks for.

        Args:
            defender: one that was certified; by default costcert (for masks, patchcleanser), or else the
                first.
            patch: one that was certified; may be left out if there is only one.
        """
        certificates = self.certificates
        keys = [] if certificates is None else certificates.keys
        usual = default_for(self.classifier.ablation)
        names = list(dict.fromkeys(name for name, _ in keys)) or [usual]
        if defender is None:
            defender = usual if usual in names else names[0]
        if certificates is not None and defender not in names:
            raise CostcertError(f"{defender} was not certified, only {', '.join(names)}: name one of them")
        chosen = replace(self.classifier, defender=defender)
        if not find(defender).masks or chosen.mask is not None:
            return chosen
        certified = list(dict.fromkeys(patch for _, patch in keys))
        if patch is None and len(certified) != 1:
            example = certified[0] if certified else "square:32"
            raise CostcertError(f"{defender} predicts by masking a patch: say which, as in {example}")
        mask = certified_patch(certified[0] if patch is None else patch, self.votes.image_size)
        if certified and mask not in certified:
            shown = ", ".join(map(str, certified))
            raise CostcertError(f"{mask} was not certified, only {shown}: name one of them")
        return replace(chosen, mask=mask)


def open_run(
    path: str | Location,
    votes: str | Location | None = None,
    *,
    ablation: str | Ablation | None = None,
    classes: int | None = None,
    image_size: ImageSize | int | str | None = None,
) -> Run:
    """Open votes, or certificates together with their votes, in any form: a folder or one file.

    Args:
        path: votes or certificates.
        votes: the votes of the certificates; by default the folder next to them that holds these.
        ablation: what each mutant kept; needed, as the next two, for a file of votes that does not record it,
            unless its certificates do.
        classes: the number of classes.
        image_size: the size of the model's input.
    """
    path = locate(path)
    described: dict[str, Any] = {"ablation": ablation, "classes": classes, "image_size": image_size}
    if not holds_certificates(path):
        if votes is not None:
            raise CostcertError(f"{path} does not hold certificates: leave --votes out")
        return Run(open_described(path, **described))
    certificates = open_certificates(path)
    votes_path = _votes_beside(certificates) if votes is None else locate(votes)
    if votes is None and not votes_path.is_dir():
        raise CostcertError(f"{path} holds certificates, but no folder of votes is next to it: pass --votes")
    return Run(_votes_of(certificates, votes_path, described), certificates)


def _votes_beside(certificates: CertificatesSource) -> Location:
    """The folder next to certificates that holds their votes; `votes`, if there is none."""
    parent, wanted = certificates.path.parent, certificates.manifest.get("votes_digest")
    usual = parent / "votes"
    if _holds_votes(usual, wanted):
        return usual
    others: list[Location] = sorted(parent.iterdir(), key=str)
    return next((folder for folder in others if _holds_votes(folder, wanted)), usual)


def _holds_votes(folder: Location, digest: str | None) -> bool:
    """Whether a folder holds complete votes with this digest."""
    try:
        return folder.is_dir() and open_described(folder).digest() == digest
    except CostcertError:
        return False


def _votes_of(certificates: CertificatesSource, path: Location, described: dict[str, Any]) -> VotesSource:
    """The votes at this path; raises if the certificates were not derived from them."""
    if certificates.manifest.get("votes_digest") is None:
        raise StoreError(
            f"{certificates.path} does not record the digest of its votes: certify {path} again, or "
            f"write_certificates(..., votes={str(path)!r})"
        )
    if path.is_file():
        _refuse_other_votes(certificates, path, file_digest(path))
        # They are the bytes that were certified, so how they were made is as it was certified.
        recorded = certificates.manifest["votes"]
        known = {
            "ablation": _cast_ablation(certificates),
            "classes": recorded.get("num_classes"),
            "image_size": tuple(recorded.get("image_size", ())),
        }
        described = {key: known[key] if value is None else value for key, value in described.items()}
    votes = open_described(path, **described)
    _refuse_other_votes(certificates, path, votes.digest())
    # The digest of a file does not cover options that say how its votes were made.
    for key in _DESCRIBED:
        certified, said = certificates.manifest["votes"].get(key), votes.manifest.get(key)
        if certified != said:
            raise StoreError(
                f"{certificates.path} was made from votes whose {key.replace('_', ' ')} is {certified}, but "
                f"that of {path} is said to be {said}: pass the options that certify had"
            )
    return votes


def _cast_ablation(certificates: CertificatesSource) -> str | None:
    """The ablation of the votes, of whose mutants some were certified."""
    classifier = certificates.manifest["votes"].get("classifier")
    ablation = classifier.get("ablation") if isinstance(classifier, dict) else None
    return ablation if isinstance(ablation, str) else None


def _refuse_other_votes(certificates: CertificatesSource, path: Location, digest: str) -> None:
    if certificates.manifest["votes_digest"] != digest:
        raise StoreError(
            f"{path} does not hold the votes that {certificates.path} was made from (their digests differ): "
            "pass the votes that were certified"
        )
