"""Who runs the missing shards: this process, a Ray cluster, or jobs of a SLURM array.

All engines mean the same: make each of these shards, once and whole. Shards are files that are there whole or
not at all, and one that is made again is the same, byte for byte; so no engine needs to know what another
did, and whatever was stopped is completed by any of them.
"""

from __future__ import annotations

from importlib import import_module

from costcert.engines.base import Engine, Job, Resources
from costcert.errors import SpellingError, nearest

__all__ = ["ENGINES", "Engine", "Job", "Resources", "find_engine"]

ENGINES = ("local", "ray", "slurm")


def find_engine(name: str) -> Engine:
    """The engine of this name; what it needs is imported here and nowhere else."""
    if name not in ENGINES:
        raise SpellingError(
            f"unknown engine {name!r}{nearest(name, ENGINES)}: use one of {', '.join(ENGINES)}"
        )
    engine: Engine = import_module(f"costcert.engines.on_{name}").run
    return engine
