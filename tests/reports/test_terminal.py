"""The table in the terminal: every number is there, whatever the width, the encoding and the number of k."""

import io
import re

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

import costcert.reports.terminal as terminal
from costcert.console import make_console
from costcert.reports.terminal import print_accuracy, print_whole

BUILTIN = ("costcert", "costcert-masks", "patchguard", "cbn", "drs")


def accuracy(ks, shares, patches=("square:2",), defenders=BUILTIN):
    rows = [
        {"patch": patch, "defender": defender, "k": k, "images": 7}
        for patch in patches
        for defender in defenders
        for k in ks
    ]
    for number, row in enumerate(rows):
        row["certified"], row["clean"] = sorted(
            (shares[number % len(shares)], shares[-1 - number % len(shares)])
        )
    return pd.DataFrame(rows)


def printed(table, width, encoding="utf-8", **options):
    """What a console of this width and encoding shows."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict", newline="")
    console = Console(file=file, width=width, highlight=False)
    print_accuracy(console, table, {}, **options)
    file.flush()
    return file.buffer.getvalue().decode(encoding)


@given(
    width=st.one_of(st.sampled_from([40, 80, 120, 200, 10_000]), st.integers(30, 300)),
    ks=st.lists(st.integers(1, 1000), min_size=1, max_size=50, unique=True),
    shares=st.lists(st.floats(0, 1), min_size=1, max_size=20),
    patches=st.integers(1, 3),
    encoding=st.sampled_from(["utf-8", "ascii", "cp1252", "latin-1"]),
)
def test_every_number_is_printed_in_full_and_fits(width, ks, shares, patches, encoding):
    table = accuracy(ks, shares, [f"square:{side + 1}" for side in range(patches)])
    shown = printed(table, width, encoding)
    pairs = [f"{100 * row.clean:.1f}/{100 * row.certified:.1f}" for row in table.itertuples()]
    assert sorted(re.findall(r"\d+\.\d/\d+\.\d", shown)) == sorted(pairs)
    heads = re.findall(r"top-\d+", shown)
    assert sorted(heads) == sorted(f"top-{k}" for k in ks for _ in range(patches))
    assert max(map(len, shown.splitlines())) <= width
    assert "…" not in shown


@given(width=st.integers(20, 100), length=st.integers(1, 200))
def test_a_long_name_is_folded_and_cuts_no_number(width, length):
    class Long:
        title = "Z" * length

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(terminal, "find", lambda name: Long)
        shown = printed(accuracy(range(1, 6), [1.0], defenders=["plugin"]), width)
    assert shown.count("100.0/100.0") == 5
    assert max(map(len, shown.splitlines())) <= width
    # The name is in each of the tables, whole.
    assert shown.count("Z") in {length * tables for tables in range(1, 6)}


def test_values_of_k_that_do_not_fit_are_split_evenly():
    shown = printed(accuracy(range(1, 11), [1.0]), 120)
    heads = [line.split() for line in shown.splitlines() if line.startswith("defender")]
    assert [len(head) - 1 for head in heads] == [5, 5]
    wide = printed(accuracy(range(1, 51), [1.0]), 10_000)
    assert wide.count("defender") == 1


@pytest.mark.parametrize(("classes", "says"), [(5, True), (6, False), (None, False)])
def test_the_top_of_all_classes_is_no_promise(classes, says):
    shown = printed(accuracy([1, 5], [0.5, 1.0]), 80, num_classes=classes)
    assert ("The top 5 of 5 classes is no promise" in shown) == says


def test_any_other_table_is_not_cut_either():
    file = io.StringIO()
    table = Table()
    table.add_column("a name", overflow="fold")
    for _ in range(6):
        table.add_column("a number", justify="right", no_wrap=True)
    table.add_row("words", *["100.0"] * 6)
    print_whole(Console(file=file, width=20), table)
    assert file.getvalue().count("100.0") == 6


def test_redirected_output_has_no_width_unless_it_is_set(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert make_console().width >= 10_000
    monkeypatch.setenv("COLUMNS", "72")
    assert make_console().width == 72
