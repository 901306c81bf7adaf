"""The compiled loops of masking defenders. tests/naive.py holds the slow twin of each.

c[i, j, y] is what the mutant that hides masks i and j gives to label y. The score of a label is
S[y] = max over i of min over j of c[i, j, y]: the best row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from costcert.compiled import allocating, compiled, inlined


class Geometry(NamedTuple):
    """What is the same for all images.

    rows: [n, n], row i lists the mutants (i, j).
    clean: [P, n, n], the clean mutants of each row under T_p come first; `num_clean` [P, n] of them.
    """

    rows: Any
    clean: Any
    num_clean: Any


class Contenders(NamedTuple):
    """The labels of one image that could have a score of at least some threshold.

    slot_of: [L], the slot of each label, -1 where it has none.
    label: [S], of each slot.
    given: [S, B], what each mutant gives to the label of a slot; zero between two images.
    seen: [L], the last mutant that named each label.
    """

    slot_of: Any
    label: Any
    given: Any
    seen: Any


@allocating
def _blank_contenders(num_mutants: Any, labels_each: Any, num_classes: Any) -> Contenders:
    most = min(num_mutants * labels_each, num_classes) + 2
    return Contenders(
        np.full(num_classes, -1, dtype=np.int32),
        np.empty(most, dtype=np.int32),
        np.zeros((most, num_mutants), dtype=np.int32),
        np.empty(num_classes, dtype=np.int32),
    )


@compiled
def _read_contenders(
    contenders: Contenders, labels: Any, units: Any, truth: Any, threshold: Any, cap: Any
) -> Any:
    """Lists every rival that some mutant gives at least `threshold`; returns how many slots are in use.

    Also every rival that a ballot names twice, because its units are added up. Slot 0 is a label without a
    vote. An unknown mutant, whose first label is negative, gives `cap` to every rival.
    """
    slot_of, label, given, seen = contenders
    seen[:] = -1
    used = 1
    soft = units.size > 0
    for m in range(len(labels)):
        for s in range(labels.shape[1]):
            y = labels[m, s]
            amount = units[m, s] if soft else 1
            if y < 0 or y == truth:
                continue
            if slot_of[y] < 0 and (amount >= threshold or seen[y] == m):
                slot_of[y] = used
                label[used] = y
                used += 1
            seen[y] = m
    for m in range(len(labels)):
        if labels[m, 0] < 0:
            given[:used, m] = cap
        else:
            for s in range(labels.shape[1]):
                slot = slot_of[labels[m, s]]
                if slot >= 0:
                    given[slot, m] += units[m, s] if soft else 1
    return used


@compiled
def _clear_contenders(contenders: Contenders, labels: Any, used: Any) -> None:
    """Undoes `_read_contenders`, in the time that the ballots take and not the table."""
    for m in range(len(labels)):
        if labels[m, 0] < 0:
            contenders.given[:used, m] = 0
        else:
            for s in range(labels.shape[1]):
                slot = contenders.slot_of[labels[m, s]]
                if slot >= 0:
                    contenders.given[slot, m] = 0
    for slot in range(1, used):
        contenders.slot_of[contenders.label[slot]] = -1


@inlined
def _given_to(labels: Any, units: Any, y: Any, m: Any) -> Any:
    """What mutant m gives to label y, -1 if unknown."""
    amount = 0
    if labels[m, 0] < 0:
        amount = -1
    else:
        for s in range(labels.shape[1]):
            if labels[m, s] == y:
                amount += units[m, s] if units.size > 0 else 1
    return amount


@compiled
def _best_row(given: Any, rows: Any) -> Any:
    """S: the largest of the least gifts of each row."""
    best = np.int64(-1)
    for i in range(len(rows)):
        least = np.int64(given[rows[i, 0]])
        for j in range(1, len(rows)):
            least = min(least, np.int64(given[rows[i, j]]))
        best = max(best, least)
    return best


@inlined
def _row_stands(given: Any, clean: Any, num_clean: Any, threshold: Any) -> Any:
    """Whether all clean mutants of a row give at least `threshold`."""
    stands = True
    for at in range(num_clean):
        if given[clean[at]] < threshold:
            stands = False
            break
    return stands


@compiled
def _standing(
    contenders: Contenders, counted: Any, labels: Any, clean: Any, num_clean: Any, threshold: Any
) -> Any:
    """How many rivals have a row that gives them at least `threshold` in all its clean mutants; -1: all.

    A row stands for the labels that its first known clean mutant names, and for no others. So the time does
    not grow with the number of labels.
    """
    passing = 0
    for i in range(len(clean)):
        if _row_stands(contenders.given[0], clean[i], num_clean[i], threshold):
            # A label without any vote stands, and so does every other.
            return np.int64(-1)
        first = clean[i, 0]
        for at in range(num_clean[i]):
            first = clean[i, at]
            if labels[first, 0] >= 0:
                break
        for s in range(labels.shape[1]):
            slot = contenders.slot_of[labels[first, s]]
            # The row itself is looked at last.
            new = slot > 0 and not counted[slot]
            if new and _row_stands(contenders.given[slot], clean[i], num_clean[i], threshold):
                counted[slot] = True
                passing += 1
    for i in range(len(clean)):
        for at in range(num_clean[i]):
            first = clean[i, at]
            if labels[first, 0] >= 0:
                for s in range(labels.shape[1]):
                    slot = contenders.slot_of[labels[first, s]]
                    if slot > 0:
                        counted[slot] = False
                break
    return np.int64(passing)


@allocating
def pairs(
    labels: Any,
    units: Any,
    truth: Any,
    geometry: Geometry,
    num_classes: Any,
    cap: Any,
    tau: Any,
    out: Any,
) -> None:
    """The most rivals whose score may reach that of the true label at one position, over all positions.

    Args:
        labels: [N, B, j]; a mutant whose first label is negative is unknown, and always the attacker's.
        units: [N, B, j], or [N, 0, 0] where each label counts one.
        truth: [N].
        out: [N].
    """
    num_images, num_mutants, labels_each = labels.shape
    rows, clean, num_clean = geometry
    positions, n = num_clean.shape
    contenders = _blank_contenders(num_mutants, labels_each, num_classes)
    own = np.empty(num_mutants, dtype=np.int64)
    least = np.empty(n, dtype=np.int64)
    thresholds = np.empty(positions, dtype=np.int64)
    counted = np.zeros(len(contenders.label), dtype=np.bool_)
    for image in range(num_images):
        for m in range(num_mutants):
            own[m] = _given_to(labels[image], units[image], truth[image], m)
        for i in range(n):
            least[i] = own[rows[i, 0]]
            for j in range(1, n):
                least[i] = min(least[i], own[rows[i, j]])
        lowest = np.int64(1) << 62
        for p in range(positions):
            # L_p - 2τ: a rival needs U_p[y] + τ ≥ L_p - τ.
            sure = np.int64(-1)
            for i in range(n):
                if num_clean[p, i] == n:
                    sure = max(sure, least[i])
            thresholds[p] = sure - 2 * tau
            lowest = min(lowest, thresholds[p])
        if lowest <= 0:
            out[image] = num_classes - 1
            continue
        used = _read_contenders(contenders, labels[image], units[image], truth[image], lowest, cap)
        found = np.int64(0)
        for p in range(positions):
            passing = _standing(contenders, counted, labels[image], clean[p], num_clean[p], thresholds[p])
            if passing < 0:
                found = np.int64(num_classes - 1)
                break
            found = max(found, passing)
        out[image] = found
        _clear_contenders(contenders, labels[image], used)


@allocating
def pair_ranks(labels: Any, units: Any, truth: Any, rows: Any, num_classes: Any, out: Any) -> None:
    """The position of the true label by best row, then by votes, then by the lowest label; all ballots known.

    Arguments as for `pairs`.
    """
    num_images, num_mutants, labels_each = labels.shape
    contenders = _blank_contenders(num_mutants, labels_each, num_classes)
    begins = np.zeros(len(contenders.label), dtype=np.bool_)
    own = np.empty(num_mutants, dtype=np.int64)
    for image in range(num_images):
        y0 = truth[image]
        votes = np.int64(0)
        for m in range(num_mutants):
            own[m] = _given_to(labels[image], units[image], y0, m)
            votes += own[m]
        score = _best_row(own, rows)
        used = _read_contenders(contenders, labels[image], units[image], y0, max(score, 1), 0)
        for i in range(len(rows)):
            for s in range(labels_each):
                begins[max(contenders.slot_of[labels[image, rows[i, 0], s]], 0)] = True
        ahead = np.int64(0)
        listed_before = np.int64(0)
        for slot in range(1, used):
            # A row that gives nothing in its first mutant gives nothing.
            if score > 0 and not begins[slot]:
                continue
            begins[slot] = False
            rival = _best_row(contenders.given[slot], rows)
            total = np.int64(0)
            for m in range(num_mutants):
                total += contenders.given[slot, m]
            before = contenders.label[slot] < y0
            listed_before += before
            if rival != score:
                ahead += rival > score
            elif total != votes:
                ahead += total > votes
            else:
                ahead += before
        if score == 0 and votes == 0:
            ahead += y0 - listed_before
        out[image] = 1 + ahead
        _clear_contenders(contenders, labels[image], used)
