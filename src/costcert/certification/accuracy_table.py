"""The table of accuracies, as a terminal shows it."""

from __future__ import annotations

import shutil

import pandas as pd

_MOST_ROWS = 60


class AccuracyTable(pd.DataFrame):
    """A `DataFrame` that prints all of its columns: pandas would leave some out of a narrow terminal."""

    @property
    def _constructor(self) -> type[AccuracyTable]:
        return AccuracyTable

    def __repr__(self) -> str:
        width = shutil.get_terminal_size().columns
        return self.to_string(line_width=width, max_rows=_MOST_ROWS)
