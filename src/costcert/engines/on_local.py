"""In this process, one shard after the other; under `torchrun` each rank makes its part of the shards."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from costcert.engines.base import Job, Resources
from costcert.errors import CostcertError


def run(job: Job, shards: Sequence[int], resources: Resources, on_done: Callable[[int], None]) -> None:
    rank, world_size = rank_and_world_size()
    make = job.open()
    for shard in shards:
        # By its number, not by its position in the list: ranks may see different shards missing.
        if shard % world_size == rank:
            make(shard)
            on_done(shard)


def rank_and_world_size() -> tuple[int, int]:
    """RANK and WORLD_SIZE as set by `torchrun`; 0 and 1 without it."""
    values = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    try:
        rank, world_size = map(int, values)
    except ValueError:
        raise CostcertError(
            f"RANK and WORLD_SIZE must be integers, got {values[0]!r} and {values[1]!r}: unset them, or run "
            "under torchrun"
        ) from None
    if not 0 <= rank < world_size:
        raise CostcertError(
            f"RANK is {rank}, but WORLD_SIZE is {world_size}: unset them, or run under torchrun"
        )
    return rank, world_size
