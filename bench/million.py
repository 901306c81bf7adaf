"""Memory of `costcert certify` on 1.3 million images, which must not grow with their number.

    python bench/million.py                     (ImageNet's training images: 1.3 million x 224 ballots)
    python bench/million.py --images 100000     (a shorter run)

Ballots are synthetic (bench/ballots.py), sampled once and relabelled in every shard, which is fast. It prints
the resident memory of the certifying process, as the kernel counts it, against the images done.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import ballots as synthetic
import costcert as cc
from costcert.store.files import join_manifest
from costcert.store.parquet import shard_ranges
from costcert.store.votes import VERSION, VotesFolder, default_shard_size, votes_manifest, write_votes_shard

CLASSES, MUTANTS = 1000, 224
MEGABYTE = 1 << 20
# Printed lines of the curve, and seconds between two measurements.
LINES, INTERVAL = 20, 0.1
# Growth from the first shard to the peak that counts as none, because freed memory is not returned at once.
ALLOWED = 1.25


def main() -> int:
    parser = argparse.ArgumentParser(description="Memory of certifying against images done.")
    parser.add_argument("--images", type=int, default=1_300_000)
    images = parser.parse_args().images
    with TemporaryDirectory() as folder:
        size = write(images, Path(folder) / "votes")
        print(f"{images:,} images x {MUTANTS} ballots, {CLASSES:,} classes, shards of {size:,} images")
        began = time.perf_counter()
        curve = certify(images, size, Path(folder) / "votes", Path(folder) / "certs")
        passed = time.perf_counter() - began
    print(f"{'images done':>12} {'memory':>10}")
    step = max(1, len(curve) // LINES)
    for done, memory in [*curve[:-1:step], curve[-1]]:
        print(f"{done:>12,} {memory / MEGABYTE:>7.0f} MB")
    first, peak = curve[0][1], max(memory for _, memory in curve)
    print(f"{passed:.0f} s, {images / passed:,.0f} images/s")
    word = "bounded" if peak <= ALLOWED * first else "growing"
    print(f"{first / MEGABYTE:.0f} MB after the first shard, peak {peak / MEGABYTE:.0f} MB: {word}")
    return 0 if peak <= ALLOWED * first else 1


def write(images: int, folder: Path) -> int:
    """Write a folder of votes shard by shard; returns the number of images per shard."""
    size = default_shard_size(MUTANTS)
    drawn, truth = synthetic.hard(min(size, images), CLASSES, mutants=MUTANTS)
    for number, part in enumerate(shard_ranges(images, size)):
        count = len(part)
        votes = cc.Votes(
            (drawn[:count].astype(np.int64) + 7 * number) % CLASSES,
            (truth[:count] + 7 * number) % CLASSES,
            num_classes=CLASSES,
            ablation="columns:19",
            image_size=224,
            image_ids=[f"{image:07d}" for image in part],
        )
        if number == 0:
            join_manifest(folder, votes_manifest(votes, images=images, shard_size=size), "votes", VERSION)
        write_votes_shard(votes, folder, number)
    source = VotesFolder(folder)
    source.seal(range(source.num_shards))
    return size


def certify(images: int, size: int, votes: Path, out: Path) -> list[tuple[int, int]]:
    """Images done and resident memory, once per shard observed to appear."""
    command = [sys.executable, "-m", "costcert", "certify", str(votes), "--patch", "32", "--out", str(out)]
    command += ["--defender", "costcert"]
    curve: list[tuple[int, int]] = []
    # Output goes to a file, because a pipe that is not read would block the process.
    log = votes.parent / "log"
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as running:
        while running.poll() is None:
            memory = resident(running.pid)
            done = min(images, size * len(list(out.glob("shard-*.parquet"))))
            if memory and done and (not curve or done > curve[-1][0]):
                curve.append((done, memory))
            elif memory and curve:
                curve[-1] = (done, max(memory, curve[-1][1]))
            time.sleep(INTERVAL)
    if running.returncode or not curve:
        raise SystemExit(f"costcert certify failed:\n{log.read_text()}")
    return curve


def resident(process: int) -> int:
    """Resident memory of a process in bytes; 0 once it has ended."""
    try:
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) << 10
    except OSError:
        if not Path("/proc/self/status").exists():
            raise SystemExit("this benchmark reads /proc, which this system does not have") from None
    return 0


if __name__ == "__main__":
    sys.exit(main())
