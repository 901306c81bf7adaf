"""Maximal unions of several sets: the mutants that several patches touch at once.

Choosing 3 of 200 sets gives a million unions, and most lie inside others: a patch that overlaps another
touches more when it is moved away. So a choice of sets is first compared with those in which one set is
replaced by a nearby one, and only the unions that remain are compared with each other.
"""

from __future__ import annotations

from math import factorial
from typing import Any

import numpy as np

from costcert.compiled import allocating, compiled, ready
from costcert.geometry import bitsets
from costcert.geometry.bitsets import Indices, TooManySetsError, Words

# Nearby sets that are tried as replacements of one.
NEAR = 8
# Sample size of an estimate.
SAMPLE = 2000
# Limit on maximal unions: a defender walks through all of them for every image.
MOST_UNIONS = 1 << 21
# Limits on the words read while one more set is added to every union (a few seconds), and on the words stored
# before duplicate unions are dropped (512 MB).
MOST_READ = 1 << 29
MOST_STORED = 1 << 26


def maximal(words: Words, times: int) -> tuple[Words, Indices]:
    """The unions of `times` of these sets that lie inside no other such union.

    Built one set at a time: every union of n sets lies inside a maximal union of n - 1 sets joined with one
    more set.

    Returns:
        [m, W], the unions; and [m, times], the indices of the sets of each.

    Raises:
        TooManySetsError: before any work if a sample shows that there are too many, otherwise while counting.
    """
    cover = covering(words, times)
    if cover is not None:
        everything = np.bitwise_or.reduce(words, axis=0)
        return everything[None], _padded(cover[None], times)
    _refuse_long_step(len(words), 1, words)
    near = nearest(words)
    for count in range(2, times + 1):
        estimated = estimate(words, near, count)
        _refuse_too_many(estimated, "at least about ")
        if count < times:
            _refuse_long_step(estimated, count, words, "at least about ")
    unions, chosen = words, np.arange(len(words))[:, None]
    while chosen.shape[1] < times and len(unions) > 1:
        _refuse_long_step(len(unions), chosen.shape[1], words)
        unions, chosen = one_more(words, near, chosen)
    _refuse_too_many(len(unions))
    return unions, _padded(chosen, times)


def covering(words: Words, times: int) -> Indices | None:
    """Up to `times` sets, chosen greedily, whose union is the union of all sets; None if that needs more."""
    missing = np.bitwise_or.reduce(words, axis=0)
    chosen: list[int] = []
    while missing.any():
        if len(chosen) == times:
            return None
        chosen.append(int(np.argmax(bitsets.sizes(words & missing))))
        missing = missing & ~words[chosen[-1]]
    return np.array(chosen or [0], dtype=np.int64)


def nearest(words: Words) -> Indices:
    """[n, up to NEAR], for each set the others with the largest intersection."""
    near = np.empty((len(words), min(NEAR, len(words) - 1)), dtype=np.int64)
    for i, one in enumerate(words):
        common = bitsets.sizes(words & one)
        common[i] = -1
        near[i] = np.argsort(-common, kind="stable")[: near.shape[1]]
    return near


def estimate(words: Words, near: Indices, times: int) -> int:
    """A rough lower bound on the number of maximal unions of `times` sets, from a sample with a fixed seed.

    The sample counts choices of sets, and several choices may give one union. Where columns and rows vote
    together, patches can exchange their columns and still touch the same mutants, so the count is divided by
    the orders of the patches along both axes.
    """
    choices = np.random.default_rng(0).integers(0, len(words), (SAMPLE, times))
    ready(_count_settled, lambda: _count_settled(words, near, choices[:0]))
    ways: int = len(words) ** times
    return int(_count_settled(words, near, choices)) * ways // (SAMPLE * factorial(times) ** 2)


def one_more(words: Words, near: Indices, choices: Indices) -> tuple[Words, Indices]:
    """The maximal unions with one set more than `choices`, and the indices of their sets.

    Args:
        words: [n, W], the single sets.
        near: the result of `nearest`.
        choices: [m, c], the indices of the sets of each maximal union of c sets.
    """
    most = MOST_STORED // (words.shape[1] + choices.shape[1] + 1)
    # Of the type that it returns: for another one it would be compiled once more.
    given = choices.astype(np.int32)
    ready(_one_more, lambda: _one_more(words, near, given[:0], most))
    unions, made = _one_more(words, near, given, most)
    if len(unions) > most:
        raise TooManySetsError(f"over {most // made.shape[1]:,} for {made.shape[1]} patches")
    keep = bitsets.maximal(unions)
    return unions[keep], made[keep]


def _refuse_too_many(unions: int, prefix: str = "") -> None:
    if unions > MOST_UNIONS:
        raise TooManySetsError(f"{prefix}{unions:,}, and the limit is {MOST_UNIONS:,}")


def _refuse_long_step(unions: int, count: int, words: Words, prefix: str = "") -> None:
    """Refuse to add one more set to each of these unions of `count` sets if that takes too long."""
    if unions * (count + 1) * words.size > MOST_READ:
        patches = "patch" if count == 1 else "patches"
        raise TooManySetsError(f"{prefix}{unions:,} for {count} {patches} alone")


def _padded(chosen: Indices, times: int) -> Indices:
    """`chosen` with the last set repeated up to `times`, where fewer sets suffice."""
    return np.pad(chosen, ((0, 0), (0, times - chosen.shape[1])), mode="edge")


@compiled
def _improvable(words: Any, near: Any, chosen: Any, others: Any) -> bool:
    """Whether replacing one chosen set by a nearby one adds to the union without losing anything."""
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


@allocating
def _count_settled(words: Any, near: Any, choices: Any) -> int:
    """The number of these choices that cannot be improved."""
    others = np.empty(words.shape[1], dtype=np.uint64)
    settled = 0
    for n in range(len(choices)):
        settled += not _improvable(words, near, choices[n], others)
    return settled


@allocating
def _one_more(words: Any, near: Any, choices: Any, most: int) -> tuple[Any, Any]:
    """All unions with one more set that cannot be improved; some repeat, and some are not maximal."""
    count, width = words.shape
    num_chosen = choices.shape[1] + 1
    unions = np.empty((1024, width), dtype=np.uint64)
    made = np.empty((1024, num_chosen), dtype=np.int32)
    chosen = np.empty(num_chosen, dtype=np.int64)
    others = np.empty(width, dtype=np.uint64)
    num_made = 0
    for n in range(len(choices)):
        chosen[:-1] = choices[n]
        # The first set varies slowest, so that neighbouring unions differ only in the last.
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
