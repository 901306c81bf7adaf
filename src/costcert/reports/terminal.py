"""The paper's table in the terminal: clean and certified accuracy, top-1 to top-5, per patch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from costcert.defenders import find

if TYPE_CHECKING:
    import pandas as pd


def print_accuracy(
    console: Console, accuracy: pd.DataFrame, headings: dict[str, str], *, explain: bool = True
) -> None:
    """Print one table per patch: `clean/certified` in percent, the best certified value of each k in bold."""
    images = int(accuracy["images"].iloc[0])
    ks = list(dict.fromkeys(accuracy["k"]))
    if explain:
        console.print(
            f"Clean / certified accuracy in % of {images:,} image{'s' if images > 1 else ''}: the true label "
            "is in the top k; and stays there whatever the patch shows, wherever it lies.",
            highlight=False,
        )
    for patch, rows in accuracy.groupby("patch", sort=False):
        table = Table(
            box=box.SIMPLE_HEAD,
            title=headings.get(str(patch), str(patch)),
            title_justify="left",
            pad_edge=False,
            padding=(0, 1),
        )
        table.add_column("defender", no_wrap=True)
        for k in ks:
            table.add_column(f"top-{k}", justify="right", no_wrap=True)
        best = rows.groupby("k")["certified"].max()
        for defender, cells in rows.groupby("defender", sort=False):
            table.add_row(
                find(str(defender)).title,
                *(
                    _cell(clean, certified, certified == best[k])
                    for k, clean, certified in zip(
                        cells["k"], cells["clean"], cells["certified"], strict=True
                    )
                ),
            )
        console.print(table)


def _cell(clean: float, certified: float, best: bool) -> str:
    text = f"{100 * certified:.1f}"
    return f"{100 * clean:.1f}/[bold]{text}[/bold]" if best else f"{100 * clean:.1f}/{text}"
