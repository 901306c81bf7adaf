"""What reports say about resizing."""

import re

import pytest

import costcert as cc
from command_line import invoke
from costcert.geometry.preparation import Preparation
from costcert.reports.resizing import WITHOUT_VOTES, resizing_note, undone_by_resizing
from mixed_sizes import model_of, pictures, votes_of


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


@pytest.mark.parametrize(
    ("patch", "interpolation", "said"),
    [("3", "bicubic", True), ("original:1", "bicubic", False), ("3", "nearest", False)],
)
def test_without_votes_a_report_says_what_they_would_show(tmp_path, patch, interpolation, said):
    cc.write_votes(votes_of(model_of(interpolation=interpolation)), tmp_path / "votes")
    assert invoke(["certify", tmp_path / "votes", "-p", patch, "-o", tmp_path / "certs"]).exit_code == 0
    assert invoke(["report", tmp_path / "certs", "-o", tmp_path / "report.md"]).exit_code == 0
    assert (WITHOUT_VOTES in " ".join((tmp_path / "report.md").read_text().split())) == said
    both = ["report", tmp_path / "certs", "--votes", tmp_path / "votes", "-o", tmp_path / "both.md"]
    assert invoke(both).exit_code == 0
    assert "pass --votes" not in (tmp_path / "both.md").read_text()


def test_nothing_is_said_of_pictures_that_cannot_be_followed(votes):
    made, size = votes.provenance, votes.image_size
    assert "changes up to" in resizing_note(cc.parse_patch("original:1"), (5, 6), made, size)
    assert resizing_note(cc.parse_patch("original:9"), (5, 6), made, size) is None
    assert resizing_note(cc.Square(3), (70000, 70000), made, size) is None
    assert resizing_note(cc.Square(3), (5, 6), made, (8, 8)) is None
    for model in ("a model", {"preprocessing": {"resize": "bicubic"}}, {}):
        assert resizing_note(cc.Square(3), (5, 6), {"model": model}, size) is None


def test_pixels_of_originals_of_other_sizes_are_another_column(tmp_path):
    model = model_of()
    options = []
    for side in (6, 12):
        votes = cc.vote(model, (pictures([(side, side)] * 3), [0, 1, 2]), "columns:3")
        cc.write_votes(votes, tmp_path / f"votes{side}")
        certs = tmp_path / f"certs{side}"
        command = ["certify", tmp_path / f"votes{side}", "-p", "original:1,original:1%", "-o", certs]
        assert invoke(command).exit_code == 0
        options += [certs, "--votes", tmp_path / f"votes{side}"]
    written = invoke(["report", *options, "--mixed", "-o", tmp_path / "report.md"])
    assert written.exit_code == 0, written.output
    text = (tmp_path / "report.md").read_text()
    assert text.count("original:1 of certs12 is a column of its own") == 1
    assert "original:1% of" not in text.replace("original:1% of originals", "")
