"""A made-up run and its whole report, each written once for all tests of reports."""

from pathlib import Path
from typing import NamedTuple

import pytest

from command_line import invoke
from made_up_run import write_run


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    write_run(folder)
    return folder


class Written(NamedTuple):
    """A report with figures and examples: its folder, what was printed, and the figures that were drawn."""

    folder: Path
    stdout: str
    drawn: list[tuple[str, float]]


@pytest.fixture(scope="session")
def written(run_folder, tmp_path_factory):
    from costcert.reports.figures import FIGURES

    folder, drawn = tmp_path_factory.mktemp("report"), []
    options = ["--votes", run_folder / "votes", "--data", f"npz:{run_folder}/images.npz"]
    options += ["--figures", folder / "figures", "--formats", "svg", "--out", folder / "report.html"]
    with pytest.MonkeyPatch.context() as patch:
        for name, kind in FIGURES.items():

            def draw(results, *, width, kind=kind, name=name):
                drawn.append((name, width))
                return kind.draw(results, width=width)

            patch.setitem(FIGURES, name, kind._replace(draw=draw))
        result = invoke(["report", run_folder / "certs", *options])
    assert result.exit_code == 0, result.output
    return Written(folder, result.stdout, drawn)
