"""The paper's table in the terminal: clean and certified accuracy, top-1 to top-5, per patch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from costcert.console import as_encoded
from costcert.defenders import find

if TYPE_CHECKING:
    import pandas as pd

_DEFENDER = "defender"
# Columns of the console between two columns of a table.
_GAP = 2
# Wider than any table.
_UNBOUNDED = 1_000_000


def print_accuracy(
    console: Console,
    accuracy: pd.DataFrame,
    headings: Mapping[str, str],
    *,
    num_classes: int | None = None,
    explain: bool = True,
) -> None:
    """Print tables per patch: `clean/certified` in percent, the best certified value of each k in bold.

    Where the values of k do not fit side by side they are split into several tables.

    Args:
        num_classes: with it, a note says that the top k of k classes is no promise.
    """
    images = int(accuracy["images"].iloc[0])
    ks = list(dict.fromkeys(accuracy["k"]))
    if explain:
        console.print(
            f"Clean / certified accuracy in % of {images:,} image{'s' if images > 1 else ''}: the true label "
            "is in the top k; and stays there whatever the patch shows, wherever it lies.\n",
            highlight=False,
        )
    for patch, rows in accuracy.groupby("patch", sort=False):
        console.print(f"{headings.get(str(patch), patch)}\n", style="italic", markup=False, highlight=False)
        for table in _tables(rows, ks, console):
            print_whole(console, table)
            console.print()
    if num_classes is not None and num_classes in ks:
        console.print(
            f"The top {num_classes} of {num_classes} classes is no promise: every label is always in it.",
            highlight=False,
        )


def print_whole(console: Console, table: Table) -> None:
    """Print a table without cutting a cell: a terminal that is too narrow breaks its lines."""
    options = console.options.update(max_width=_UNBOUNDED)
    least = Measurement.get(console, options, table).minimum
    if least > console.width:
        table.width = least
    console.print(table, crop=False, soft_wrap=False)


def _tables(rows: pd.DataFrame, ks: Sequence[int], console: Console) -> Iterator[Table]:
    """The accuracies against one patch, in as many tables as the width of the console needs."""
    best = rows.groupby("k")["certified"].max()
    cells = {
        (row["defender"], row["k"]): _cell(row["clean"], row["certified"], best[row["k"]])
        for row in rows.to_dict(orient="records")
    }
    titles = {name: as_encoded(find(name).title, console.encoding) for name in rows["defender"].unique()}
    width = max(*map(len, cells.values()), *(len(_heading(k)) for k in ks))
    # A title that leaves no room for a number is folded.
    stub = max(len(_DEFENDER), *map(len, titles.values()))
    stub = max(min(stub, console.width - width - _GAP), 1)
    most = max((console.width - stub) // (width + _GAP), 1)
    # All tables but the last have the same number of columns.
    length = -(-len(ks) // -(-len(ks) // most))
    for start in range(0, len(ks), length):
        block = ks[start : start + length]
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
        table.add_column(_DEFENDER, width=stub, overflow="fold")
        for k in block:
            table.add_column(_heading(k), width=width, justify="right", no_wrap=True)
        for defender, title in titles.items():
            table.add_row(title, *(cells[defender, k] for k in block))
        yield table


def _heading(k: int) -> str:
    return f"top-{k}"


def _cell(clean: float, certified: float, best: float) -> Text:
    text = (f"{100 * certified:.1f}", "bold" if certified == best else "")
    return Text.assemble(f"{100 * clean:.1f}/", text)
