"""Verifies every success of an attack from scratch, and saves the evidence of a false certificate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from costcert.attacks.attempts import Attempt
from costcert.attacks.judging import Judge, Positions, differing
from costcert.attacks.placements import Placements
from costcert.errors import CostcertError
from costcert.models.classifier import Pixels
from costcert.store.files import atomic_write, write_json
from costcert.store.locations import Location
from costcert.votes.table import Votes

FOLDER, RECORD = "evidence", "evidence.json"


class FalseCertificateError(CostcertError):
    """A certificate does not hold: a bug in this package or in the model's views, or a hardware fault."""


def refuse_evidence(folder: Location) -> None:
    """Raise if any process has found a false certificate in this folder."""
    evidence = folder / FOLDER
    images: list[Location] = [*evidence.iterdir()] if evidence.is_dir() else []
    for image in sorted(images, key=str):
        if (image / RECORD).is_file():
            raise FalseCertificateError(
                f"a certificate is false, the evidence is in {image}: please report it; "
                "this folder is not continued until the evidence is removed"
            )


class Inspector:
    """Compares attempts on some images with their certificates.

    Args:
        clean, votes: the images, and their votes.
        min_k: the certificates: the true label stays in the top `min_k`.
        folder: where evidence is saved.
        provenance: how the attack was run, with its model, data and options.
    """

    def __init__(
        self,
        judge: Judge,
        placements: Placements,
        clean: Pixels,
        votes: Votes,
        min_k: Positions,
        folder: Location,
        provenance: Mapping[str, Any],
    ) -> None:
        self.judge, self.placements = judge, placements
        self.clean, self.votes, self.min_k = clean, votes, min_k
        self.folder, self.provenance = folder, provenance

    def verify(self, attempts: Sequence[Attempt | None]) -> tuple[Pixels, Votes, Positions]:
        """For one attempt per image: uint8 pixels, the votes of all mutants, and the true label's positions.

        The images are evaluated in the same order and number as the clean ones, so that a mutant that does
        not keep a pixel of the patch goes through the same arithmetic and must cast the same ballot.
        """
        patched = self.clean.copy()
        touched = np.zeros(self.votes.ballots.shape, dtype=np.bool_)
        for row, attempt in enumerate(attempts):
            if attempt is not None and attempt.pixels is not None:
                covered = self.placements.pixels(attempt.placement.places)
                patched[row][covered] = attempt.pixels[covered]
                touched[row, self.placements.touched(attempt.placement.places)] = True
        after = self.judge.votes(patched, self.votes.truth)
        positions = self.judge.positions(after)
        # Mutants that changed their ballots although the patch does not touch them.
        leaking = differing(self.votes, after) & ~touched
        failed = leaking.any(axis=1) | (positions > self.min_k)
        for row in np.flatnonzero(failed).tolist():
            self._save(row, attempts[row], patched[row], after, int(positions[row]), leaking[row])
        if failed.any():
            row = int(np.flatnonzero(failed)[0])
            raise FalseCertificateError(
                self._sentence(row, int(positions[row]), leaking[row])
                + f"; the evidence on {failed.sum()} image{'s' if failed.sum() > 1 else ''} is in "
                f"{self.folder / FOLDER}: please report it"
            )
        return patched, after, positions

    def _sentence(self, row: int, position: int, leaking: npt.NDArray[np.bool_]) -> str:
        name = self.votes.image_ids[row]
        if leaking.any():
            return (
                f"mutants {', '.join(map(str, np.flatnonzero(leaking)))} of image {name} changed their "
                f"ballots although {self.judge.patch} does not touch them, so no certificate of this model "
                "holds"
            )
        return (
            f"the certificate of image {name} is FALSE: its true label was certified for the top "
            f"{self.min_k[row]} against {self.judge.patch}, but a patch pushes it to position {position}"
        )

    def _save(
        self,
        row: int,
        attempt: Attempt | None,
        patched: Pixels,
        after: Votes,
        position: int,
        leaking: npt.NDArray[np.bool_],
    ) -> None:
        folder = self.folder / FOLDER / f"image-{_safe(str(self.votes.image_ids[row]))}"
        before, now = self.votes.take([row]), after.take([row])
        arrays: dict[str, npt.NDArray[Any]] = {"clean": self.clean[row], "patched": patched}
        for when, votes in (("before", before), ("after", now)):
            arrays[f"ballots_{when}"] = votes.ballots[0]
            if votes.labels is not None and votes.units is not None:
                arrays[f"labels_{when}"], arrays[f"units_{when}"] = votes.labels[0], votes.units[0]
        for name in ("clean", "patched"):
            shown = arrays[name][..., 0] if arrays[name].shape[2] == 1 else arrays[name]
            with atomic_write(folder / f"{name}.png") as temporary:
                Image.fromarray(shown).save(temporary, format="png")
        with atomic_write(folder / "votes.npz") as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
        places = () if attempt is None else attempt.placement.places
        content = {
            "what": self._sentence(row, position, leaking),
            "image": str(self.votes.image_ids[row]),
            "truth": int(self.votes.truth[row]),
            "places": [list(place) for place in places],
            "touched": self.placements.touched(places).tolist(),
            "changed_though_untouched": np.flatnonzero(leaking).tolist(),
            "certificate": {
                "classifier": self.judge.classifier.to_json(),
                "patch": str(self.judge.patch),
                "ties": "lowest",
                "min_k": int(self.min_k[row]),
            },
            "position_before": int(self.judge.positions(before)[0]),
            "position_after": position,
            "scores_before": self.judge.deployed.scores(before)[0].tolist(),
            "scores_after": self.judge.deployed.scores(now)[0].tolist(),
            "run": dict(self.provenance),
        }
        write_json(folder / RECORD, content)


def _safe(name: str) -> str:
    """An image's id, made safe for a folder name."""
    return "".join(char if char.isalnum() or char in "-_." else "_" for char in name)[-100:]
