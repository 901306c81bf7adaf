"""Every claim is checked from scratch, and a certificate that does not hold leaves all there is to know."""

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

FOLDER, CASE = "evidence", "evidence.json"


class FalseCertificateError(CostcertError):
    """What was proved is not so: a fault in this package, in the model's views or in the machine."""


def refuse_evidence(folder: Location) -> None:
    """Where a false certificate was found nothing goes on, whoever found it."""
    evidence = folder / FOLDER
    cases: list[Location] = [*evidence.iterdir()] if evidence.is_dir() else []
    for case in sorted(cases, key=str):
        if (case / CASE).is_file():
            raise FalseCertificateError(
                f"a certificate proved to be false, the evidence is in {case}: please report it; "
                "nothing goes on in this folder until that is removed"
            )


class Inspector:
    """Checks attempts on some images against what was certified of them.

    Args:
        clean, votes: the images, and their votes.
        min_k: what is certified: the true label stays in the top `min_k`.
        folder: for evidence.
        provenance: how the attack was run, model and all.
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
        """For one attempt an image: whole pixels, the votes of all their mutants, and the positions.

        The images are asked in the same order and number as the clean ones, so that a mutant that keeps
        none of the patch goes through the very same arithmetic and must say the very same.
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
        strayed = differing(self.votes, after) & ~touched
        failed = strayed.any(axis=1) | (positions > self.min_k)
        for row in np.flatnonzero(failed).tolist():
            self._save(row, attempts[row], patched[row], after, int(positions[row]), strayed[row])
        if failed.any():
            row = int(np.flatnonzero(failed)[0])
            raise FalseCertificateError(
                self._sentence(row, int(positions[row]), strayed[row])
                + f"; the evidence on {failed.sum()} image{'s' if failed.sum() > 1 else ''} is in "
                f"{self.folder / FOLDER}: please report it"
            )
        return patched, after, positions

    def _sentence(self, row: int, position: int, strayed: npt.NDArray[np.bool_]) -> str:
        name = self.votes.image_ids[row]
        if strayed.any():
            return (
                f"mutants {', '.join(map(str, np.flatnonzero(strayed)))} of image {name} changed their "
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
        strayed: npt.NDArray[np.bool_],
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
            "what": self._sentence(row, position, strayed),
            "image": str(self.votes.image_ids[row]),
            "truth": int(self.votes.truth[row]),
            "places": [list(place) for place in places],
            "touched": self.placements.touched(places).tolist(),
            "changed_though_untouched": np.flatnonzero(strayed).tolist(),
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
        write_json(folder / CASE, content)


def _safe(name: str) -> str:
    """An image's id as the name of a folder."""
    return "".join(sign if sign.isalnum() or sign in "-_." else "_" for sign in name)[-100:]
