"""Several runs side by side."""

import csv
import io
import re

import pytest
from test_tables import Grid, braces_match, run, tabulars

from costcert.errors import CostcertError
from costcert.reports.leaderboard import leaderboard, leaderboard_markdown
from costcert.reports.published import published
from costcert.reports.tables import csv_table, html, latex, markdown


def certified(table, patch, k):
    """The values of one column, from the top."""
    column = next(
        number
        for number, heading in enumerate(table.columns)
        if heading[0] == "certified" and heading[1].startswith(f"{patch} ") and heading[2] == f"top-{k}"
    )
    return [row.cells[column].value for row in table.rows]


def test_rows_say_what_ran_and_what_came_out():
    runs = [run("one", images=200), run("two", images=200, seed=1)]
    table = leaderboard(runs)
    assert table.stub == ("run", "model", "defender", "passes per image")
    assert "200 images of sample (test)" in table.caption
    assert len(table.rows) == 4
    wanted = {
        (results.name, row["defender"].lower(), metric, row["patch"], row["k"]): row[metric]
        for results in runs
        for row in results.accuracy([1, 5]).to_dict(orient="records")
        for metric in ("clean", "certified")
    }
    shown = {
        (
            row.labels[0],
            row.labels[2].lower(),
            metric,
            patch.split()[0],
            int(k.removeprefix("top-")),
        ): cell.value
        for row in table.rows
        for (metric, patch, k), cell in zip(table.columns, row.cells, strict=True)
    }
    assert shown == wanted
    assert {row.labels[1] for row in table.rows} == {"strip:small"}
    assert {row.labels[3] for row in table.rows} == {"28"}


def test_the_best_certified_come_first():
    runs = [run(f"run {seed}", images=300, seed=seed) for seed in range(5)]
    values = certified(leaderboard(runs), "square:2", 1)
    assert values == sorted(values, reverse=True)
    assert len(set(values)) > 1
    table = leaderboard(runs, by=("square:4", 5))
    values = certified(table, "square:4", 5)
    assert values == sorted(values, reverse=True)
    assert "sorted by certified top-5 against square:4" in table.caption
    assert [row.cells[-1].is_best for row in table.rows] == [value == values[0] for value in values]


def test_what_was_not_measured_comes_last():
    runs = [run("without", patches=("square:4",)), run("with", patches=("square:2", "square:4"))]
    table = leaderboard(runs, by=("square:2", 1))
    assert [row.labels[0] for row in table.rows] == ["with", "with", "without", "without"]
    assert certified(table, "square:2", 1)[2:] == [None, None]


@pytest.mark.parametrize("by", [("square:3", 1), ("square:2", 4)])
def test_an_order_that_is_not_shown_is_refused(by):
    with pytest.raises(CostcertError, match="cannot sort by"):
        leaderboard([run()], by=by)


@pytest.mark.parametrize(
    "other", [{"images": 41}, {"classes": 11}, {"data": "another"}], ids=["images", "classes", "name"]
)
def test_runs_on_different_data_are_not_mixed_unless_allowed(other):
    runs = [run("one"), run("two", **other)]
    with pytest.raises(
        CostcertError, match=r"one is on 40 images of sample .* but two is on .* allow mixed data"
    ):
        leaderboard(runs)
    table = leaderboard(runs, mixed=True)
    assert {row.labels[0] for row in table.rows} == {"one", "two"}
    assert "not comparable" in table.notes[0]


def test_mixed_data_are_named_in_every_row():
    table = leaderboard([run("one"), run("two", images=41)], mixed=True)
    place = table.stub.index("data")
    assert {(row.labels[0], row.labels[place]) for row in table.rows} == {
        ("one", "40 images of sample (test)"),
        ("two", "41 images of sample (test)"),
    }


def test_other_resolutions_share_the_columns_of_the_same_share():
    runs = [
        run("small", image_size=(224, 224), patches=("square:32",)),
        run("large", image_size=(384, 384), patches=("square:55",)),
    ]
    table = leaderboard(runs)
    assert {heading[1] for heading in table.columns} == {"square:32 (2.0 %)"}
    assert None not in certified(table, "square:32", 1)


def test_published_rows_can_be_added():
    mine = run("mine", classes=1000, image_size=(224, 224), patches=("square:32", "square:96"))
    table = leaderboard([mine], published=published("imagenet"))
    rows = {row.labels[3]: row for row in table.rows if row.is_published}
    assert list(rows) == ["PG", "CC", "PG♠", "PG⋆", "CBN⋆"]
    assert rows["CC"].labels == (
        "Zhou et al., Table 1",
        "ViT-b16-224",
        "50,000 images of ImageNet (validation)",
        "CC",
        "224",
    )
    assert rows["CBN⋆"].labels[4] == "n/a"
    texts = [cell.text for cell in rows["CC"].cells]
    assert texts == ["41.0", "66.4", "n/a", "n/a", "70.3", "87.7", "n/a", "n/a"]
    assert "Left out" in " ".join(table.notes)


def test_the_paper_alone_is_a_leaderboard_too():
    table = leaderboard([], published=published("gtsrb"), by=("square:35", 5))
    assert [row.labels[2] for row in table.rows] == ["CC", "PG", "PG♠"]


def test_every_renderer_draws_it():
    names = ["<script>", "a_b & c"]
    table = leaderboard([run(name, seed=seed) for seed, name in enumerate(names)])
    text = html(table)
    assert "<script>" not in text
    texts = Grid(text).texts()
    assert all(len(row) == 4 + 8 for row in texts)
    assert texts[0][4:] == ["certified"] * 4 + ["clean"] * 4
    assert texts[1][4:] == (["square:2 (0.5 %)"] * 2 + ["square:4 (2.0 %)"] * 2) * 2
    assert texts[2][4:] == ["top-1", "top-5"] * 4
    assert {row[0] for row in texts[3:7]} == set(names)

    drawn = latex(table)
    assert braces_match(drawn)
    first, second = tabulars(drawn)
    assert {len(row) for row in first + second} == {4 + 4}
    assert r"a\_b \& c" in drawn

    assert markdown(table).count("\n| ") == 2 + 4
    lines = list(csv.reader(io.StringIO(csv_table(table))))
    assert [line[0] for line in lines[1:]] == [row.labels[0] for row in table.rows]
    assert [float(line[4]) for line in lines[1:]] == [row.cells[0].value for row in table.rows]


def test_markdown_goes_patch_by_patch_with_certified_first():
    table = leaderboard([run("one"), run("two", seed=1)], [1, 5])
    first, second = re.findall(r"(?m)^\| run .*\n(?:\|.*\n)+", leaderboard_markdown(table))
    assert first.splitlines()[0] == (
        "| run | model | defender | passes per image "
        "| certified top-1 | certified top-5 | clean top-1 | clean top-5 |"
    )
    for number, part in enumerate((first, second)):
        shown = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in part.splitlines()[2:]]
        columns = [2 * number, 2 * number + 1, 4 + 2 * number, 5 + 2 * number]
        assert shown == [[*row.labels, *(row.cells[column].text for column in columns)] for row in table.rows]


def test_parts_of_a_table_keep_their_numbers_and_leave_out_what_is_unknown():
    runs = [run("with", patches=("square:2", "square:4")), run("without", patches=("square:4",), seed=1)]
    table = leaderboard(runs, [1, 5], by=("square:4", 1))
    small, large = table.by_patch()
    assert (small.caption, large.caption) == ("square:2 (0.5 %)", "square:4 (2.0 %)")
    assert small.columns == tuple((metric, f"top-{k}") for metric in ("certified", "clean") for k in (1, 5))
    assert {row.labels[0] for row in small.rows} == {"with"}
    assert [row.labels for row in large.rows] == [row.labels for row in table.rows]
    joined = large.with_joined_labels()
    assert joined.stub == ("run, model, passes per image", "defender")
    assert joined.rows[0].labels == (
        f"{large.rows[0].labels[0]}, strip:small, 28",
        large.rows[0].labels[2],
    )


def test_one_row_is_not_bold():
    table = leaderboard([run(defenders=("costcert",))])
    assert len(table.rows) == 1
    assert not any(cell.is_best for cell in table.rows[0].cells)


def test_no_run_is_refused():
    with pytest.raises(CostcertError, match="no run to show"):
        leaderboard([])
