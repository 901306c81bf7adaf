"""Engines make the missing shards: in this process, on a Ray cluster, or in a SLURM job array.

A shard file is either complete or absent, and a shard that is made again has the same bytes. So engines share
no state, and any of them can complete a run that another one started.
"""

from __future__ import annotations

from importlib import import_module

from costcert.engines.base import Engine, Job, Resources
from costcert.errors import SpellingError, nearest

__all__ = ["ENGINES", "Engine", "Job", "Resources", "find_engine"]

ENGINES = ("local", "ray", "slurm")


def find_engine(name: str) -> Engine:
    """The engine of this name; its package is imported when it runs."""
    if name not in ENGINES:
        raise SpellingError(
            f"unknown engine {name!r}{nearest(name, ENGINES)}: use one of {', '.join(ENGINES)}"
        )
    engine: Engine = import_module(f"costcert.engines.on_{name}").run
    return engine
