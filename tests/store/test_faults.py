"""Faults: kill -9 at any moment, a full disk, a read-only folder, two runs at once.

Nothing that was finished is lost, nothing half-written is read, and the run that completes the work ends with
the same bytes as one that was never disturbed. Moments are drawn from fixed seeds; how far a run has got by
then depends on the machine.
"""

import errno
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import costcert as cc
from costcert.errors import CostcertError
from costcert.store import files
from costcert.store.votes import VotesFolder
from costcert.verification import digests as chain
from costcert.votes.voting import vote
from places import TESTS
from tiny import Tiny, pictures
from waiting import wait_until

HERE = str(TESTS)
VOTE = f"""
    import sys
    sys.path.insert(0, {HERE!r})
    from tiny import Tiny, pictures
    from costcert.votes.voting import vote
    print("ready", flush=True)
    vote(Tiny(pause=0.01), pictures(60), "columns:3", out=sys.argv[1], shard_size=3)
"""
COMMAND = """
    import sys
    from costcert.cli import main
    {imports}
    print("ready", flush=True)
    main(sys.argv[1:])
"""
CERTIFY = COMMAND.format(imports="import costcert.cli.certify, costcert.defenders.kernels")
REPORT = COMMAND.format(imports="import costcert.cli.report")


def start(script, *args):
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def killed_after(seconds, script, *args):
    """Kill a run some seconds after it has begun; whether it was still running."""
    with start(script, *args) as running:
        assert running.stdout.readline() == b"ready\n"
        time.sleep(seconds)
        running.send_signal(signal.SIGKILL)
        running.stdout.read()
    assert running.returncode in (0, -signal.SIGKILL)
    return running.returncode != 0


def killed_within(seconds, script, *args):
    """Kill a run within some seconds after it has begun; if it was done by then, kill the next one sooner."""
    while not killed_after(seconds, script, *args):
        assert seconds > 0, "a run that has just begun is done already"
        seconds = seconds / 4 if seconds > 0.01 else 0
    return 1


def finish(script, *args):
    """Seconds that an undisturbed run takes after it has begun."""
    with start(script, *args) as running:
        assert running.stdout.readline() == b"ready\n"
        began = time.monotonic()
        running.stdout.read()
    assert running.returncode == 0
    return time.monotonic() - began


def shards(folder):
    return {path: path.stat().st_mtime_ns for path in folder.glob("shard-*")}


def content(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def disturbed(out, moments, script, *args):
    """Kill a run at each of these moments; finished shards must stay unchanged every time."""
    kills, finished, longer = 0, {}, 1
    for moment in moments:
        # A machine that is busier than when the moments were drawn gets more time, until a shard is there.
        longer *= 1 if finished else 2
        kills += killed_within(longer * moment, script, *args)
        now = shards(out)
        assert finished.items() <= now.items()
        finished = now
    return kills, finished


def in_pairs(work, count):
    """Run two at a time: the machines that run these tests may have two cores."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(work, range(count)))


@pytest.mark.slow
def test_votes_survive_being_killed(tmp_path):
    """9 kills, in 3 folders."""
    vote(Tiny(), pictures(60), "columns:3", out=tmp_path / "whole", shard_size=3)
    whole, seconds = content(tmp_path / "whole"), finish(VOTE, tmp_path / "timed")

    def suffer(number):
        rng, out = random.Random(number), tmp_path / f"votes-{number}"
        moments = [rng.uniform(0, 0.9 * seconds) for _ in range(3)]
        kills, finished = disturbed(out, moments, VOTE, out)
        # So far there is either nothing, or incomplete votes, which are refused as incomplete.
        if (out / "manifest.json").exists():
            source = VotesFolder(out)
            for place in range(source.num_shards):
                if place not in source.missing():
                    assert len(source.shard(place)) == 3
            if source.missing():
                with pytest.raises(CostcertError, match="shards are missing"):
                    cc.read_votes(out)
        vote(Tiny(), pictures(60), "columns:3", out=out, shard_size=3)
        assert finished.items() <= shards(out).items()
        assert content(out) == whole
        return kills, len(finished)

    kills, finished = zip(*in_pairs(suffer, 3), strict=True)
    print(f"votes: {sum(kills)} kills, with {finished} of 20 shards finished after the last of each")
    assert sum(kills) == 9
    assert any(finished)


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    """Votes in 40 shards, and the certificates of an undisturbed run."""
    folder = tmp_path_factory.mktemp("certified")
    rng = np.random.default_rng(1)
    truth = rng.integers(0, 50, 4000)
    ballots = np.where(rng.random((4000, 48)) < 0.5, truth[:, None], rng.integers(0, 50, (4000, 48)))
    votes = cc.Votes(ballots, truth, num_classes=50, ablation="columns:3", image_size=(4, 48))
    cc.write_votes(votes, folder / "votes", shard_size=100)
    ask = ["certify", folder / "votes", "--patch", "2,4", "--out"]
    # The first run may have to compile.
    finish(CERTIFY, *ask, folder / "first")
    seconds = finish(CERTIFY, *ask, folder / "certs")
    return folder, ask, content(folder / "certs"), seconds


@pytest.mark.slow
def test_certificates_survive_being_killed(certified, tmp_path):
    """9 kills, in 3 folders."""
    _, ask, whole, seconds = certified

    def suffer(number):
        rng, out = random.Random(100 + number), tmp_path / f"certs-{number}"
        moments = [rng.uniform(0, 0.9 * seconds) for _ in range(3)]
        kills, finished = disturbed(out, moments, CERTIFY, *ask, out)
        finish(CERTIFY, *ask, out)
        assert finished.items() <= shards(out).items()
        assert content(out) == whole
        assert chain.verify_digests(out).problems == []
        return kills, len(finished)

    kills, finished = zip(*in_pairs(suffer, 3), strict=True)
    print(f"certificates: {sum(kills)} kills, with {finished} of 40 shards finished after the last of each")
    assert sum(kills) == 9
    assert any(finished)


@pytest.mark.slow
def test_reports_are_there_whole_or_not_at_all(certified, tmp_path):
    """8 kills; an older table stays as it was until the new one is complete."""
    folder, *_ = certified
    out = tmp_path / "report.csv"
    ask = ["report", folder / "certs", "--out", out]
    seconds = finish(REPORT, *ask)
    whole = out.read_bytes()
    old, kills, rng = b"the report of yesterday", 0, random.Random(200)
    for number in range(8):
        out.write_bytes(old) if number % 2 else out.unlink(missing_ok=True)
        kills += killed_within(rng.uniform(0, seconds), REPORT, *ask)
        assert (
            out.read_bytes() in (old, whole) if number % 2 else not out.exists() or out.read_bytes() == whole
        )
    finish(REPORT, *ask)
    assert out.read_bytes() == whole
    print(f"reports: {kills} kills")
    assert kills == 8


@pytest.mark.slow
def test_training_survives_being_killed(tmp_path):
    """3 kills of a tiny strip network's training: it continues, and ends with the same weights."""
    pytest.importorskip("torch", reason="training needs costcert[models]")
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "data.npz",
        images=rng.integers(0, 256, (60, 8, 8), dtype=np.uint8),
        labels=np.arange(60) % 2,
    )
    script = COMMAND.format(imports="import torch; torch.set_num_threads(1); import costcert.cli.train")
    ask = [
        "train",
        "--model",
        "strip:small",
        "--data",
        f"npz:{tmp_path / 'data.npz'}",
        "--ablation",
        "columns:3",
    ]
    ask += ["--epochs", "4", "--batch-size", "10", "--image-size", "8", "--out"]
    seconds = finish(script, *ask, tmp_path / "whole")
    weights = next((tmp_path / "whole").glob("*.safetensors")).read_bytes()
    moments, kills, out = random.Random(300), 0, tmp_path / "model"
    for _ in range(3):
        kills += killed_within(moments.uniform(0, 0.6 * seconds), script, *ask, out)
    finish(script, *ask, out)
    assert next(out.glob("*.safetensors")).read_bytes() == weights
    print(f"training: {kills} kills")
    assert kills == 3


def test_a_folder_of_a_run_killed_before_its_manifest_is_begun_anew(tmp_path):
    out = tmp_path / "votes"
    out.mkdir()
    (out / f".manifest.json.{files._host()}.{2**22 + 1}.tmp").write_text("{")
    vote(Tiny(), pictures(6), "columns:3", out=out)
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json", "shard-00000.parquet"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("")
    with pytest.raises(CostcertError, match=r"holds no manifest\.json"):
        vote(Tiny(), pictures(6), "columns:3", out=tmp_path / "other")


@pytest.mark.slow
def test_two_runs_into_one_folder_at_once_end_with_the_same_bytes(certified, tmp_path):
    """Each makes the shards that it finds missing; both write the same bytes, and writes are atomic."""
    vote(Tiny(), pictures(60), "columns:3", out=tmp_path / "whole", shard_size=3)
    pair = [start(VOTE, tmp_path / "votes") for _ in range(2)]
    seen = set()
    while any(running.poll() is None for running in pair):
        for path in (tmp_path / "votes").glob("shard-*"):
            number = int(path.name[6:11])
            assert len(VotesFolder(tmp_path / "votes").shard(number)) == 3
            seen.add(number)
        time.sleep(0.05)
    for running in pair:
        running.stdout.close()
        assert running.wait() == 0
    assert content(tmp_path / "votes") == content(tmp_path / "whole")
    assert seen
    _, ask, whole, _ = certified
    pair = [start(CERTIFY, *ask, tmp_path / "certs") for _ in range(2)]
    for running in pair:
        running.stdout.read()
        running.stdout.close()
        assert running.wait() == 0
    assert content(tmp_path / "certs") == whole


@pytest.mark.slow
def test_a_run_that_differs_is_refused_while_another_is_at_work(tmp_path):
    with start(VOTE, tmp_path / "votes") as running:
        wait_until(lambda: shards(tmp_path / "votes"), running)
        with pytest.raises(CostcertError, match="holds another run"):
            vote(Tiny(seed=1), pictures(60), "columns:3", out=tmp_path / "votes", shard_size=3)
        running.stdout.read()
    assert running.returncode == 0
    vote(Tiny(), pictures(60), "columns:3", out=tmp_path / "whole", shard_size=3)
    assert content(tmp_path / "votes") == content(tmp_path / "whole")


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 64 kB."""
    place = tmp_path / "small"
    place.mkdir()
    mount = shutil.which("mount")
    made = (
        mount
        and os.geteuid() == 0
        and subprocess.run(
            [mount, "-t", "tmpfs", "-o", "size=64k", "tmpfs", place], capture_output=True, check=False
        )
    )
    if not made or made.returncode != 0:
        pytest.skip("a small file system can only be mounted by root, where the system allows it")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_really_full_disk(small_disk, tmp_path):
    vote(Tiny(), pictures(60), "columns:3", out=tmp_path / "whole", shard_size=3)
    out = small_disk / "votes"
    with pytest.raises(CostcertError, match=r"the disk is full: .* files finished before it are kept"):
        vote(Tiny(), pictures(60), "columns:3", out=out, shard_size=3)
    finished = shards(out)
    assert 0 < len(finished) < 20
    assert not list(out.glob(".*"))
    subprocess.run(["mount", "-o", "remount,size=1m", small_disk], check=True)
    vote(Tiny(), pictures(60), "columns:3", out=out, shard_size=3)
    assert finished.items() <= shards(out).items()
    assert content(out) == content(tmp_path / "whole")


@pytest.mark.parametrize("file", ["shard-00000", "shard-00007", "manifest"])
@pytest.mark.parametrize("trouble", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT])
def test_a_disk_that_fails_while_syncing(tmp_path, monkeypatch, file, trouble):
    """The last step fails, when a file is synced to disk; also while the folder is sealed."""
    vote(Tiny(), pictures(30), "columns:3", out=tmp_path / "whole", shard_size=3)
    sync, names = os.fsync, []

    def failing(handle):
        names.append(os.readlink(f"/proc/self/fd/{handle}"))
        # The manifest is written twice: at the beginning, and with the digests at the end.
        if f".{file}" in names[-1] and (
            file != "manifest" or sum(".manifest" in name for name in names) == 2
        ):
            raise OSError(trouble, os.strerror(trouble))
        sync(handle)

    if not Path("/proc/self/fd").exists():
        pytest.skip("which file is being made safe is told by /proc")
    monkeypatch.setattr(files.os, "fsync", failing)
    with pytest.raises(CostcertError, match=r"the disk is full|cannot write"):
        vote(Tiny(), pictures(30), "columns:3", out=tmp_path / "votes", shard_size=3)
    monkeypatch.undo()
    finished = shards(tmp_path / "votes")
    assert len(finished) == {"shard-00000": 0, "shard-00007": 7, "manifest": 10}[file]
    assert not list((tmp_path / "votes").glob(".*"))
    vote(Tiny(), pictures(30), "columns:3", out=tmp_path / "votes", shard_size=3)
    assert finished.items() <= shards(tmp_path / "votes").items()
    assert content(tmp_path / "votes") == content(tmp_path / "whole")


def test_a_folder_without_write_permission(tmp_path):
    place = tmp_path / "locked"
    place.mkdir()
    place.chmod(0o500)
    # Root may write anywhere, unless it drops that capability.
    without = ["setpriv", "--bounding-set", "-dac_override"] if os.access(place, os.W_OK) else []
    if without and not shutil.which("setpriv"):
        place.chmod(0o700)
        pytest.skip("root may write anywhere, and there is no setpriv to give that up")
    try:
        ended = subprocess.run(
            [*without, sys.executable, "-c", textwrap.dedent(VOTE), place / "votes"],
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        place.chmod(0o700)
    assert re.search(r"StoreError: cannot write .*: permission denied\n$", ended.stderr)
    assert list(place.iterdir()) == []


# One process; the disk becomes read-only before shard 7 is written, and writable again afterwards.
LOCKED = f"""
    import errno, json, os, pathlib, shutil, subprocess, sys
    sys.path.insert(0, {HERE!r})
    from command_line import invoke
"""
LOCKED += """
    from costcert.store.certificates import CertificatesFolder

    how, place, kept, certs, *ask = sys.argv[1:]
    replace, write = pathlib.Path.replace, CertificatesFolder.write

    def refuse(path, target):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    def remount(*options):
        subprocess.run(["mount", *options, place], check=True)

    def lock():
        remount("-o", "remount,ro") if how == "mounted" else setattr(pathlib.Path, "replace", refuse)

    def unlock():
        remount("-o", "remount,rw") if how == "mounted" else setattr(pathlib.Path, "replace", replace)

    def run(*words):
        result = invoke(words)
        return result.exit_code, result.stderr

    def locking(plan, certificates, number):
        if number == 7:
            lock()
        write(plan, certificates, number)

    if how == "mounted":
        remount("-t", "tmpfs", "tmpfs")
    CertificatesFolder.write = locking
    told = [run(*ask, f"{place}/certs")]
    CertificatesFolder.write = write
    told += [run("report", certs, "--out", f"{place}/report.csv"), run(*ask, f"{place}/certs.csv")]
    files = sorted(str(path.relative_to(place)) for path in pathlib.Path(place).rglob("*") if path.is_file())
    unlock()
    last = run(*ask, f"{place}/certs")
    shutil.copytree(f"{place}/certs", kept)
    print(json.dumps([told, files, last]))
"""


def private_mounts():
    """A command that runs another in a mount namespace of its own, or the reason why there is none."""
    if not shutil.which("unshare"):
        return None, "made up, there is no unshare"
    words = ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else [])]
    with tempfile.TemporaryDirectory() as place:
        try_it = 'mount -t tmpfs tmpfs "$0" && mount -o remount,ro "$0"'
        tried = subprocess.run(
            [*words, "sh", "-c", try_it, place], capture_output=True, text=True, check=False
        )
    return (words, "") if tried.returncode == 0 else (None, f"made up, {tried.stderr.strip()}")


@pytest.mark.slow
def test_a_disk_that_becomes_read_only(certified, tmp_path):
    """Remounted read-only where the system allows it; otherwise the system's error is simulated."""
    folder, ask, whole, _ = certified
    words, why = private_mounts()
    print(f"read-only: {why or 'a disk that is mounted'}")
    how = "made up" if words is None else "mounted"
    place = tmp_path / "disk"
    place.mkdir()
    command = [*(words or []), sys.executable, "-c", textwrap.dedent(LOCKED), how, place, tmp_path / "kept"]
    ended = subprocess.run(
        [*map(str, command), str(folder / "certs"), *map(str, ask)],
        capture_output=True,
        text=True,
        check=True,
    )
    told, files, last = json.loads(ended.stdout)
    for (code, said), name in zip(
        told, ["certs/shard-00007.parquet", "report.csv", "certs.csv"], strict=True
    ):
        assert code == 2
        assert " ".join(said.split()).endswith(f"cannot write {place}/{name}: read-only file system")
        assert "Traceback" not in said
    assert files == ["certs/manifest.json", *(f"certs/shard-{number:05d}.parquet" for number in range(7))]
    assert last[0] == 0
    assert content(tmp_path / "kept") == whole
