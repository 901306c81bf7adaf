"""Sets of mutants as bits, 64 to a word: rows of a matrix that can be merged and compared quickly."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from costcert.compiled import compiled, ready

Bools = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]

# Of how many mutants is noted which sets hold them; sets that agree on these are compared in full.
PROBES = 512
# Words looked at while sets are compared: some seconds' worth.
MOST_STEPS = 1 << 31

_ODD = np.uint64(0x9E3779B97F4A7C15)


class TooLongError(Exception):
    """More to compare than anybody would wait for, counted in steps; its text says how many sets."""


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
    """How many mutants each set holds."""
    ones: npt.NDArray[np.uint8] = np.bitwise_count(words)
    return np.asarray(ones.sum(axis=1, dtype=np.int64))


def maximal(words: Words) -> Indices:
    """Which rows to keep, in order, so that no set is there twice or inside another."""
    words = np.ascontiguousarray(words)
    distinct = _first_of_equals(words)
    size = sizes(words[distinct])
    # A set can only lie inside a larger one: look for it there, largest first.
    falling = np.argsort(-size, kind="stable")
    by_size = distinct[falling]
    probes = _far_apart(64 * words.shape[1])
    ready(_inside_another, lambda: _inside_another(words[:0], size[:0], probes, 0))
    inside, steps = _inside_another(words[by_size], size[falling], probes, MOST_STEPS)
    if steps > MOST_STEPS:
        raise TooLongError(f"{len(distinct):,} that nearly contain each other")
    return np.sort(by_size[~inside])


def _first_of_equals(words: Words) -> Indices:
    """The rows that equal none before them."""
    key = np.zeros(len(words), dtype=np.uint64)
    for column in words.T:
        key = (key ^ column) * _ODD
        key ^= key >> np.uint64(32)
    order = np.argsort(key, kind="stable")
    equal = (words[order[1:]] == words[order[:-1]]).all(axis=1)
    if (key[order[1:]] == key[order[:-1]])[~equal].any():
        # Different rows with one key may stand between equal ones.
        order = np.lexsort(words.T)
        equal = (words[order[1:]] == words[order[:-1]]).all(axis=1)
    return np.sort(order[np.concatenate([[True], ~equal])[: len(order)]])


def _far_apart(size: int) -> Indices:
    """Up to `PROBES` mutants, each far from the one before: neighbours are held by the same sets."""
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
    """Which of 64 hold all that is `held`, as bits; and how many steps that took."""
    left = ~np.uint64(0)
    for j in range(num_held):
        left &= holders[held[j]]
        if left == 0:
            return left, j + 1
    return left, num_held


@compiled
def _inside_another(words: Words, size: Indices, probes: Indices, most_steps: int) -> tuple[Bools, int]:
    """For sets ordered by falling size: whether a larger one contains it; and how many steps that took.

    Kept sets stand in groups of 64. `sets[g, j]` has a bit for each set of group g: whether it holds mutant
    `probes[j]`; `groups[h, j]` one for each of 64 groups: whether any of its sets does.
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
        num_heaps = (larger + 4095) >> 12
        for n in range(num_heaps):
            # Neighbours tend to lie inside the same set: begin where the last one was found.
            heap = ((hit >> 12) + n) % num_heaps
            some, taken = _hold_all(groups[heap], held, num_held)
            steps += taken
            group = heap << 6
            while some and not inside[i]:
                if some & one:
                    left, taken = _hold_all(sets[group], held, num_held)
                    steps += taken
                    place = group << 6
                    while left and place < larger:
                        if left & one:
                            steps += width
                            if _lies_inside(words[i], words[kept[place]]):
                                inside[i] = True
                                hit = place
                                break
                        left >>= one
                        place += 1
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
