"""Here, one shard after the other; as one of several where `torchrun` or the like started many of us."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from costcert.engines.base import Job, Resources
from costcert.errors import CostcertError


def run(job: Job, shards: Sequence[int], resources: Resources, on_done: Callable[[int], None]) -> None:
    rank, ranks = rank_and_world_size()
    make = job.open()
    for shard in shards:
        # By its number and not by its place in the list: all of us agree on whose it is, whatever is missing.
        if shard % ranks == rank:
            make(shard)
            on_done(shard)


def rank_and_world_size() -> tuple[int, int]:
    """Which of how many processes this is, as `torchrun` tells its children."""
    try:
        rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    except ValueError:
        raise CostcertError(
            "RANK and WORLD_SIZE are whole numbers: unset them, or run under torchrun"
        ) from None
    if not 0 <= rank < ranks:
        raise CostcertError(f"RANK is {rank}, but WORLD_SIZE is {ranks}: unset them, or run under torchrun")
    return rank, ranks
