"""A made-up run: votes, hard and soft certificates of them, and images."""

import numpy as np

import costcert as cc

CLASSES, SIDE = 12, 16
NAMES = ["<b>true</b> & right", *(f"kind {n}" for n in range(1, CLASSES))]
PATCHES = [cc.Square(1), cc.Square(3), cc.Square(5)]


def write_run(folder):
    """Write the run: `votes`, `certs`, `soft` (the certificates of soft ballots) and `images.npz`."""
    rng = np.random.default_rng(3)
    truth = rng.integers(0, CLASSES, 90)
    wrong = rng.random((90, SIDE)) < rng.random((90, 1))
    ballots = np.where(wrong, rng.integers(0, CLASSES, (90, SIDE)), truth[:, None])
    labels = np.stack([ballots, (ballots + 1) % CLASSES], axis=2)
    given = rng.integers(500, 900, (90, SIDE))
    votes = cc.Votes.soft(
        labels,
        np.stack([given, 1000 - given], axis=2),
        truth,
        cap=1000,
        ballots=ballots,
        num_classes=CLASSES,
        ablation="columns:3",
        image_size=SIDE,
        image_ids=[f"picture-{n:03d}" for n in range(90)],
        class_names=NAMES,
        hide="crop",
        provenance={
            "model": {
                "name": "made up",
                "digest": "sha256:0",
                "preprocessing": {"image_size": [SIDE, SIDE]},
            },
            "data": {"name": "npz", "split": "test"},
        },
    )
    cc.write_votes(votes, folder / "votes", shard_size=32)
    cc.write_certificates(cc.certify(votes.hard(), PATCHES), folder / "certs", votes=folder / "votes")
    cc.write_certificates(cc.certify(votes, PATCHES), folder / "soft", votes=folder / "votes")
    np.savez(
        folder / "images.npz",
        images=rng.integers(0, 256, (90, SIDE, SIDE, 3), dtype=np.uint8),
        labels=truth,
        ids=votes.image_ids,
    )
