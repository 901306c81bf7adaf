"""Sets of mutants as bits, 64 to a word: rows of a matrix that can be merged and compared quickly."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from costcert.compiled import compiled, ready

Bools = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]


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
    order = np.lexsort(words.T)
    repeats = np.zeros(len(words), dtype=np.bool_)
    repeats[1:] = (words[order[1:]] == words[order[:-1]]).all(axis=1)
    distinct = np.sort(order[~repeats])
    size = sizes(words[distinct])
    # A set can only lie inside a larger one: look for it there, largest first.
    by_size = distinct[np.argsort(-size, kind="stable")]
    ready(_inside_another, lambda: _inside_another(words[:0], size[:0]))
    inside = _inside_another(words[by_size], -np.sort(-size))
    return np.sort(by_size[~inside])


@compiled
def _inside_another(words: Words, size: Indices) -> Bools:
    """For sets ordered by falling size: whether a larger one contains it."""
    count, width = words.shape
    inside = np.zeros(count, dtype=np.bool_)
    kept = np.empty(count, dtype=np.int64)
    num_kept = larger = hit = 0
    for i in range(count):
        if i > 0 and size[i] < size[i - 1]:
            larger = num_kept
        # Neighbours tend to lie inside the same set: begin where the last one was found.
        for n in range(larger):
            j = (hit + n) % larger
            contained = True
            for w in range(width):
                if words[i, w] & ~words[kept[j], w]:
                    contained = False
                    break
            if contained:
                inside[i] = True
                hit = j
                break
        if not inside[i]:
            kept[num_kept] = i
            num_kept += 1
    return inside
