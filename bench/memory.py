"""Peak memory, measured in a new process, because the peak of a process includes everything it did before.

bench/certify.py starts this file, which prints one line of JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

MEGABYTE = 1 << 20


def in_new_process(*what: str) -> dict[str, Any]:
    """The measurement `what`, in a new interpreter."""
    command = [sys.executable, str(Path(__file__).resolve()), *what]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def blocks(images: int) -> dict[str, Any]:
    """Memory that certifying 50,176 mutants per image adds to that of importing and compiling."""
    import ballots as synthetic
    import costcert as cc

    def votes(block: int, side: int, count: int) -> cc.Votes:
        ballots, truth = synthetic.blocks(count, side=side)
        return cc.Votes(ballots, truth, num_classes=1000, ablation=cc.Blocks(block), image_size=(side, side))

    cc.certify(votes(3, 16, 64), [cc.Square(2)], ["costcert"])
    made = votes(75, 224, images)
    # Generating ballots takes memory that is not the library's.
    _reset_peak()
    before = _peak()
    cc.certify(made, [cc.Square(32)], ["costcert"])
    return {"added": _peak() - before}


def folder(votes: str, out: str) -> dict[str, Any]:
    """The peak of the command `costcert certify` on a folder of votes, including imports."""
    from costcert.cli import main

    sys.argv = ["costcert", "certify", votes, "--patch", "32", "--defender", "costcert", "--out", out]
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            main()
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
    return {"peak": _peak()}


def _peak() -> int:
    """Peak resident bytes, from /proc where possible, because ru_maxrss starts at the parent's peak."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _reset_peak() -> None:
    """Reset the peak; where the system cannot, the peak includes compiling."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    print(json.dumps(blocks(int(sys.argv[2])) if sys.argv[1] == "blocks" else folder(*sys.argv[2:])))
