"""From ballots to certificates in a few seconds, without torch or a network connection.

python examples/quickstart.py
"""

from __future__ import annotations

import numpy as np

import costcert as cc

NAMES = ("panda", "dog", "cat", "bear", "fox", "wolf", "lynx", "hare", "deer", "owl")
IMAGES, SIDE = 500, 32


def synthetic_ballots(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Ballots [N, B] and truth [N] of easy and hard images, each with labels it is confused with.

    Neighbouring strips keep nearly the same pixels, so most of them vote like the one to their left.
    """
    truth = rng.integers(0, len(NAMES), IMAGES)
    steps = rng.integers(1, len(NAMES), (IMAGES, 6))
    which = (6 * rng.random((IMAGES, SIDE)) ** 2).astype(int)
    wrong = (truth[:, None] + np.take_along_axis(steps, which, axis=1)) % len(NAMES)
    correct = rng.random((IMAGES, SIDE)) < rng.beta(2, 1, (IMAGES, 1))
    ballots = np.where(correct, truth[:, None], wrong)
    for strip in range(1, SIDE):
        follows = rng.random(IMAGES) < 0.6
        ballots[follows, strip] = ballots[follows, strip - 1]
    return ballots, truth


def main() -> None:
    ballots, truth = synthetic_ballots(np.random.default_rng(0))
    votes = cc.Votes(
        ballots,
        truth,
        num_classes=len(NAMES),
        ablation=cc.Columns(4),
        image_size=(SIDE, SIDE),
        class_names=NAMES,
    )
    patch = cc.Square(5)
    certs = cc.certify(votes, patch, ["costcert", "patchguard", "cbn"])

    print(f"{votes}\nagainst {patch}; clean / certified accuracy in %:\n")
    table = certs.accuracy(k=[1, 2, 3])
    for defender, rows in table.groupby("defender", sort=False):
        cells = (
            f"top-{row.k} {100 * row.clean:5.1f} / {100 * row.certified:5.1f}" for row in rows.itertuples()
        )
        print(f"{defender:>10}   " + "   ".join(cells))

    rank, min_k = certs.rank("costcert", patch), certs.min_k("costcert", patch)
    image = int(np.flatnonzero((rank == 1) & (min_k == 2))[0])
    attack = cc.witness(votes, image, patch, k=1)
    assert attack is not None
    (top, left), name = attack.places[0], NAMES[truth[image]]
    lifted = int(attack.labels[0])
    agree = int((ballots[image] == truth[image]).sum())
    print(
        f"\nImage {image} shows a {name}, and {agree} of {SIDE} mutants vote for it. "
        f"A {patch.side} x {patch.side} patch at row {top}, column {left} touches {len(attack.touched)} "
        f"mutants. With the ballots of the witness, {NAMES[lifted]} has {attack.scores[lifted]} votes and "
        f"{name} {attack.scores[truth[image]]}: {name} is number {attack.position} (a tie counts as lost). "
        f"No patch of this size pushes it out of the top {min_k[image]}."
    )


if __name__ == "__main__":
    main()
