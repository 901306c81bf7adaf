"""What reports say about resizing."""

import re

import pytest

import costcert as cc
from command_line import invoke
from costcert.geometry.preparation import Preparation
from costcert.reports.resizing import undone_by_resizing
from mixed_sizes import model_of, votes_of


@pytest.fixture(scope="module")
def votes():
    return votes_of(model_of())


@pytest.mark.parametrize(
    ("patch", "interpolation", "expected"),
    [
        (
            cc.Square(14),
            "bicubic",
            r"2x2 px .* up to 34x34 px: it covers no sticker on the original at all; original:2",
        ),
        (cc.Square(35), "bicubic", r"5x5 px .* 55x55 px: it covers only stickers of up to 2x2 .* 84 % less"),
        (cc.Square(35), "bilinear", r"41x41 px: it covers only stickers of up to 4x4 .* 36 % less"),
    ],
)
def test_what_resizing_undoes(patch, interpolation, expected):
    prepared = Preparation((224, 224), interpolation=interpolation)
    assert re.search(expected, undone_by_resizing(patch, (32, 32), prepared))


def test_nothing_is_undone_where_pixels_are_repeated_or_kept():
    assert (
        undone_by_resizing(cc.Square(14), (32, 32), Preparation((224, 224), interpolation="nearest")) is None
    )
    assert undone_by_resizing(cc.Square(3), (32, 32), Preparation((32, 32))) is None


@pytest.mark.parametrize("ending", ["html", "md", "tex", "csv", "json"])
def test_reports_name_the_original(votes, tmp_path, ending):
    """Beside every size at the input stands what resizing makes of it."""
    cc.write_votes(votes, tmp_path / "votes")
    made = invoke(["certify", tmp_path / "votes", "-p", "original:1,original:2,3", "-o", tmp_path / "certs"])
    assert made.exit_code == 0, made.output
    report = tmp_path / f"report.{ending}"
    written = invoke(["report", tmp_path / "certs", "--votes", tmp_path / "votes", "-o", report])
    assert written.exit_code == 0, written.output
    text = report.read_text()
    assert "original:2" in text
    if ending in ("html", "md", "tex"):
        plain = " ".join(re.sub(r"<[^>]*>|\\\\", " ", text).split())
        assert "of originals of 5x6, the most frequent of 3 sizes" in plain
        assert "spreads these to up to" in plain
    if ending == "html":
        assert "2\u00a0×\u00a02\u00a0px of the original" in text
