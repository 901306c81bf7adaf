"""Unions of several sets: what several patches touch at once, reduced to the maximal ones.

Three out of 200 sets have a million unions, and most of them lie inside others: a patch that overlaps
another touches more when it is moved aside. So a choice of sets is first compared with those in which one
set gives way to one nearby, and only what that leaves is compared with all the rest.
"""

from __future__ import annotations

from math import factorial
from typing import Any

import numpy as np

from costcert.compiled import compiled, ready
from costcert.geometry import bitsets
from costcert.geometry.bitsets import Indices, TooLongError, Words

# Sets nearby that are tried in place of one.
NEAR = 8
# Choices drawn for an estimate.
SAMPLE = 2000
# Maximal unions: a defender walks through each of them for every image.
MOST_CASES = 1 << 21
# Words looked at while unions are joined with one more set, some seconds' worth; and words written down
# before repeated unions are dropped (512 MB).
MOST_JOINED = 1 << 29
MOST_WRITTEN = 1 << 26


def largest(words: Words, times: int) -> tuple[Words, Indices]:
    """The maximal unions of `times` of these sets, none of which lies inside another.

    Built set by set: a union of n sets lies inside one of a maximal union of n - 1 and one set more.

    Returns:
        [m, W], the unions; and [m, times], which sets make them.

    Raises:
        TooLongError: at once where a sample shows that there are too many, else once they are counted.
    """
    cover = covering(words, times)
    if cover is not None:
        everything = np.bitwise_or.reduce(words, axis=0)
        return everything[None], _filled_up(cover[None], times)
    _joinable(len(words), 1, words)
    near = nearest(words)
    for count in range(2, times + 1):
        cases = estimate(words, near, count)
        _walkable(cases, "at least about ")
        if count < times:
            _joinable(cases, count, words, "at least about ")
    unions, chosen = words, np.arange(len(words))[:, None]
    while chosen.shape[1] < times and len(unions) > 1:
        _joinable(len(unions), chosen.shape[1], words)
        unions, chosen = one_more(words, near, chosen)
    _walkable(len(unions))
    return unions, _filled_up(chosen, times)


def covering(words: Words, times: int) -> Indices | None:
    """Up to `times` sets that hold all that any set holds, always taking what adds most; None if it fails."""
    missing = np.bitwise_or.reduce(words, axis=0)
    chosen: list[int] = []
    while missing.any():
        if len(chosen) == times:
            return None
        chosen.append(int(np.argmax(bitsets.sizes(words & missing))))
        missing = missing & ~words[chosen[-1]]
    return np.array(chosen or [0], dtype=np.int64)


def nearest(words: Words) -> Indices:
    """[n, up to NEAR], for each set the others that it has most in common with."""
    near = np.empty((len(words), min(NEAR, len(words) - 1)), dtype=np.int64)
    for i, one in enumerate(words):
        common = bitsets.sizes(words & one)
        common[i] = -1
        near[i] = np.argsort(-common, kind="stable")[: near.shape[1]]
    return near


def estimate(words: Words, near: Indices, times: int) -> int:
    """About how many maximal unions of `times` sets there are at least, from a sample, always the same.

    The sample counts choices. Where columns and rows vote together, patches may exchange their columns and
    touch the same: each union is taken to be made by all orders of its patches.
    """
    choices = np.random.default_rng(0).integers(0, len(words), (SAMPLE, times))
    ready(_count_settled, lambda: _count_settled(words, near, choices[:0]))
    ways: int = len(words) ** times
    return int(_count_settled(words, near, choices)) * ways // (SAMPLE * factorial(times) ** 2)


def one_more(words: Words, near: Indices, choices: Indices) -> tuple[Words, Indices]:
    """The maximal unions of one set more than there are in `choices`, and the sets that make them.

    Args:
        words: [n, W], the single sets.
        near: as `nearest` gives it.
        choices: [m, c], which sets make each maximal union of c sets.
    """
    most = MOST_WRITTEN // (words.shape[1] + choices.shape[1] + 1)
    ready(_one_more, lambda: _one_more(words, near, choices[:0], most))
    unions, made = _one_more(words, near, choices, most)
    if len(unions) > most:
        raise TooLongError(f"over {most // made.shape[1]:,} for {made.shape[1]} patches")
    keep = bitsets.maximal(unions)
    return unions[keep], made[keep]


def _walkable(cases: int, prefix: str = "") -> None:
    if cases > MOST_CASES:
        raise TooLongError(f"{prefix}{cases:,}, and at most {MOST_CASES:,} are tried")


def _joinable(cases: int, count: int, words: Words, prefix: str = "") -> None:
    if cases * (count + 1) * words.size > MOST_JOINED:
        raise TooLongError(f"{prefix}{cases:,} for {count} {'patch' if count == 1 else 'patches'} alone")


def _filled_up(chosen: Indices, times: int) -> Indices:
    """With the last set repeated where fewer than `times` will do."""
    return np.pad(chosen, ((0, 0), (0, times - chosen.shape[1])), mode="edge")


@compiled
def _improvable(words: Any, near: Any, chosen: Any, others: Any) -> bool:
    """Whether a chosen set can give way to one nearby so that the union loses nothing and gains something."""
    for i in range(len(chosen) - 1, -1, -1):
        others[:] = 0
        for j in range(len(chosen)):
            if j != i:
                for w in range(len(others)):
                    others[w] |= words[chosen[j], w]
        for other in near[chosen[i]]:
            loses = gains = False
            for w in range(len(others)):
                now = words[chosen[i], w] & ~others[w]
                then = words[other, w] & ~others[w]
                if now & ~then:
                    loses = True
                    break
                gains |= now != then
            if gains and not loses:
                return True
    return False


@compiled
def _count_settled(words: Any, near: Any, choices: Any) -> int:
    """How many of these choices cannot be improved."""
    others = np.empty(words.shape[1], dtype=np.uint64)
    settled = 0
    for n in range(len(choices)):
        settled += not _improvable(words, near, choices[n], others)
    return settled


@compiled
def _one_more(words: Any, near: Any, choices: Any, most: int) -> tuple[Any, Any]:
    """All unions with one set more that cannot be improved: repeated ones and a few too many among them."""
    count, width = words.shape
    num_chosen = choices.shape[1] + 1
    unions = np.empty((1024, width), dtype=np.uint64)
    made = np.empty((1024, num_chosen), dtype=np.int32)
    chosen = np.empty(num_chosen, dtype=np.int64)
    others = np.empty(width, dtype=np.uint64)
    num_made = 0
    for n in range(len(choices)):
        chosen[:-1] = choices[n]
        # The first set is the slowest index, so that neighbouring cases differ in the last alone.
        for last in range(count):
            chosen[-1] = last
            if _improvable(words, near, chosen, others):
                continue
            if num_made == len(unions):
                unions = np.concatenate((unions, np.empty_like(unions)))
                made = np.concatenate((made, np.empty_like(made)))
            for w in range(width):
                union = words[last, w]
                for j in range(num_chosen - 1):
                    union |= words[chosen[j], w]
                unions[num_made, w] = union
            made[num_made] = chosen
            num_made += 1
        if num_made > most:
            break
    return unions[:num_made], made[:num_made]
