"""Sets of mutants as bitsets, 64 mutants per word: the rows of a matrix, fast to merge and to compare."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from costcert.compiled import allocating, compiled, ready

Bools = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]

# Mutants in the index of which set holds which mutant; only sets that agree on these are compared in full.
PROBES = 512
# Up to this many words every set is compared with every other, in milliseconds: compiling the loop that
# compares fewer takes a second.
FEW = 1 << 20
# Limit on the words read while sets are compared: a few seconds.
MOST_STEPS = 1 << 31

# Odd multiplier of the hash of a row.
_ODD = np.uint64(0x9E3779B97F4A7C15)


class TooManySetsError(Exception):
    """Comparing the sets would take too long; the message says how many there are."""


def pack(sets: Bools) -> Words:
    """[n, B] booleans as [n, ceil(B/64)] words."""
    count, size = sets.shape
    padded = np.zeros((count, -(-size // 64) * 64), dtype=np.bool_)
    padded[:, :size] = sets
    return np.packbits(padded, axis=1, bitorder="little").view(np.uint64)


def unpack(words: Words, size: int) -> Bools:
    """The inverse of `pack` for sets over `size` mutants."""
    return np.unpackbits(words.view(np.uint8), axis=1, count=size, bitorder="little").view(np.bool_)


def sizes(words: Words) -> Indices:
    """The number of mutants in each set."""
    ones: npt.NDArray[np.uint8] = np.bitwise_count(words)
    return np.asarray(ones.sum(axis=1, dtype=np.int64))


def maximal(words: Words) -> Indices:
    """Indices, ascending, of the distinct sets that lie inside no other set."""
    words = np.ascontiguousarray(words)
    distinct = _first_of_equals(words)
    if len(distinct) ** 2 * words.shape[1] <= FEW:
        sets = words[distinct]
        # Each set lies inside itself.
        inside = (sets[:, None] & ~sets == 0).all(axis=2)
        return np.asarray(distinct[inside.sum(axis=1) == 1])
    size = sizes(words[distinct])
    # A set can only lie inside a larger one, so sets are compared with those before them, largest first.
    descending = np.argsort(-size, kind="stable")
    by_size = distinct[descending]
    probes = _spread_out(64 * words.shape[1])
    ready(_inside_another, lambda: _inside_another(words[:0], size[:0], probes, 0))
    inside, steps = _inside_another(words[by_size], size[descending], probes, MOST_STEPS)
    if steps > MOST_STEPS:
        raise TooManySetsError(f"{len(distinct):,} that nearly contain each other")
    return np.sort(by_size[~inside])


def _first_of_equals(words: Words) -> Indices:
    """Indices, ascending, of the rows that equal no earlier row."""
    key = np.zeros(len(words), dtype=np.uint64)
    for column in words.T:
        key = (key ^ column) * _ODD
        key ^= key >> np.uint64(32)
    order = np.argsort(key, kind="stable")
    equal = (words[order[1:]] == words[order[:-1]]).all(axis=1)
    if (key[order[1:]] == key[order[:-1]])[~equal].any():
        # Rows that differ but share a key may have separated equal rows: sort by the rows themselves.
        order = np.lexsort(words.T)
        equal = (words[order[1:]] == words[order[:-1]]).all(axis=1)
    return np.sort(order[np.concatenate([[True], ~equal])[: len(order)]])


def _spread_out(size: int) -> Indices:
    """Up to `PROBES` mutants, each far from the previous one, because neighbours are in the same sets."""
    evenly = np.unique(np.linspace(0, size - 1, min(size, PROBES)).astype(np.int64))
    golden = (np.sqrt(5) - 1) / 2
    return np.asarray(evenly[np.argsort(np.arange(len(evenly)) * golden % 1)])


@compiled
def _lies_inside(one: Any, other: Any) -> bool:
    w = 0
    while w < len(one) and not one[w] & ~other[w]:
        w += 1
    return w == len(one)


@compiled
def _hold_all(holders: Any, held: Any, num_held: int) -> tuple[Any, int]:
    """Which of 64 sets hold every mutant in `held`, as bits; and the number of steps taken."""
    left = ~np.uint64(0)
    for j in range(num_held):
        left &= holders[held[j]]
        if left == 0:
            return left, j + 1
    return left, num_held


@allocating
def _inside_another(words: Words, size: Indices, probes: Indices, most_steps: int) -> tuple[Bools, int]:
    """For each set, ordered by descending size, whether a larger one contains it; and the steps taken.

    Kept sets are indexed in groups of 64, and groups in blocks of 64. `sets[g, j]` has a bit for each set of
    group g: whether it holds mutant `probes[j]`; `groups[b, j]` has a bit for each group of block b: whether
    any of its sets does.
    """
    count, width = words.shape
    one = np.uint64(1)
    inside = np.zeros(count, dtype=np.bool_)
    kept = np.empty(count, dtype=np.int64)
    sets = np.zeros(((count >> 6) + 1, len(probes)), dtype=np.uint64)
    groups = np.zeros(((count >> 12) + 1, len(probes)), dtype=np.uint64)
    held = np.empty(len(probes), dtype=np.int64)
    num_kept = larger = hit = steps = 0
    for i in range(count):
        if i > 0 and size[i] < size[i - 1]:
            larger = num_kept
        num_held = 0
        for j in range(len(probes)):
            if words[i, probes[j] >> 6] >> np.uint64(probes[j] & 63) & one:
                held[num_held] = j
                num_held += 1
        num_blocks = (larger + 4095) >> 12
        for n in range(num_blocks):
            # Neighbours tend to lie inside the same set: start where the last one was found.
            block = ((hit >> 12) + n) % num_blocks
            some, taken = _hold_all(groups[block], held, num_held)
            steps += taken
            group = block << 6
            while some and not inside[i]:
                if some & one:
                    left, taken = _hold_all(sets[group], held, num_held)
                    steps += taken
                    index = group << 6
                    while left and index < larger:
                        if left & one:
                            steps += width
                            if _lies_inside(words[i], words[kept[index]]):
                                inside[i] = True
                                hit = index
                                break
                        left >>= one
                        index += 1
                some >>= one
                group += 1
            if inside[i]:
                break
        if steps > most_steps:
            break
        if not inside[i]:
            group = num_kept >> 6
            for j in range(num_held):
                sets[group, held[j]] |= one << np.uint64(num_kept & 63)
                groups[group >> 6, held[j]] |= one << np.uint64(group & 63)
            kept[num_kept] = i
            num_kept += 1
    return inside, steps
