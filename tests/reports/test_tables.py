"""Tables as the paper has them, in every format, and the paper's own numbers."""

import csv
import io
import json
import re
import shutil
import subprocess
from functools import cache
from html.parser import HTMLParser

import numpy as np
import pytest
from markdown_it import MarkdownIt

import costcert as cc
from costcert.certification.accuracy import Tally
from costcert.errors import CostcertError, SpellingError
from costcert.geometry.touch import touched
from costcert.reports.leaderboard import leaderboard
from costcert.reports.published import DATASETS, PEERS, published
from costcert.reports.results import Results
from costcert.reports.tables import (
    Cell,
    Row,
    csv_table,
    csv_text,
    html,
    json_text,
    latex,
    markdown,
    paper_table,
    tidy_rows,
)
from costcert.reports.tables.as_latex import STYLES, _parts, _total
from costcert.reports.tables.layout import with_best
from costcert.reports.tables.patch_matching import Threat, match_patches
from places import beside

PAPER = beside("seed", "costcert-paper.tex.txt")
UGLY = r"50% <b>of_it</b> & | {x} $y$ #1 ~^ \n [z] *q* `c` -- é"


CLASSIFIER = cc.Defence(cc.Columns(4))


def run(
    name="a run",
    *,
    patches=("square:2", "square:4"),
    defenders=("costcert", "patchguard"),
    images=40,
    classes=10,
    image_size=(28, 28),
    data="sample",
    seed=0,
    made=True,
):
    """Results of random certificates."""
    rng = np.random.default_rng(seed)
    cases = {}
    for defender in defenders:
        for patch in patches:
            min_k = rng.integers(1, classes + 1, images)
            cases[defender, cc.parse_patch(patch)] = (rng.integers(1, min_k + 1), min_k)
    tally = Tally()
    tally.add(
        cc.Certificates(
            cases,
            image_ids=np.arange(images).astype(str),
            num_classes=classes,
            image_size=image_size,
            classifier=CLASSIFIER,
        )
    )
    votes = {"image_size": list(image_size), "num_classes": classes}
    if made:
        votes["made"] = {"model": {"name": "strip:small"}, "data": {"name": data, "split": "test"}}
    return Results(name, {"classifier": CLASSIFIER.to_json(), "votes": votes}, tally)


class Grid(HTMLParser):
    """The texts of an HTML table by row and column, spans filled; and what every cell was tagged with."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.attributes, self.tags, self.free = [], [], [], {}
        self.caption = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append({})
            self.row_attributes = dict(attributes)
        elif tag in ("td", "th"):
            at = dict(attributes)
            row, column = len(self.rows) - 1, 0
            while (row, column) in self.free:
                column += 1
            self.cell = [""]
            self.attributes.append((tag, at, self.row_attributes, self.cell))
            for down in range(int(at.get("rowspan", 1))):
                for across in range(int(at.get("colspan", 1))):
                    assert (row + down, column + across) not in self.free
                    self.free[row + down, column + across] = self.cell

    def handle_endtag(self, tag):
        assert self.tags.pop() == tag

    def handle_data(self, text):
        if "caption" in self.tags:
            self.caption += text
        elif "td" in self.tags or "th" in self.tags:
            self.cell[0] += f"*{text}*" if "strong" in self.tags else text

    def texts(self):
        height, width = (1 + max(place) for place in zip(*self.free, strict=True))
        return [[self.free[row, column][0] for column in range(width)] for row in range(height)]


def latex_rows(text):
    """The cells of every line of the only tabular, those that span several columns repeated."""
    (rows,) = tabulars(text)
    return rows


def tabulars(text):
    return [_tabular(body) for body in re.findall(r"\\toprule\n(.*?)\\bottomrule", text, re.DOTALL)]


def _tabular(body):
    rows = []
    for line in body.split("\n"):
        if not line.endswith(r"\\"):
            assert re.fullmatch(r"(\\midrule|(\\cmidrule\(lr\)\{\d+-\d+\})+)?", line)
            continue
        cells = []
        for cell in re.split(r"(?<!\\)&", line.removesuffix(r"\\")):
            spanning = re.match(r"\s*\\multicolumn\{(\d+)\}", cell)
            cells += [cell.strip()] * (int(spanning[1]) if spanning else 1)
        rows.append(cells)
    return rows


def braces_match(text):
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", text.replace(r"\\", "")):
        depth += 1 if brace == "{" else -1
        assert depth >= 0
    return depth == 0


def expected(results, ks):
    """Texts of the cells from `accuracy`, by defender, metric, patch and k."""
    return {
        (row["defender"], metric, row["patch"], row["k"]): f"{100 * row[metric]:.1f}"
        for row in results.accuracy(ks).to_dict(orient="records")
        for metric in ("clean", "certified")
    }


TITLES = {"costcert": "CostCert", "patchguard": "PatchGuard"}


def body(results, ks):
    """All rows of a one-run table, as they should read."""
    values = expected(results, ks)
    return [
        [f"Top-{k}", TITLES[defender]]
        + [
            values[defender, metric, patch, k]
            for metric in ("certified", "clean")
            for patch in results.patches
        ]
        for k in ks
        for defender in results.defenders
    ]


@pytest.mark.parametrize(
    ("defenders", "ks"),
    [(("costcert", "patchguard"), [1, 2, 5]), (("costcert",), [1, 5]), (("costcert", "patchguard"), [3])],
    ids=["several", "one defender", "one k"],
)
def test_every_format_shows_the_accuracy_of_the_results(defenders, ks):
    results = run(defenders=defenders)
    table = paper_table([results], ks)
    wanted = body(results, ks)

    grid = Grid(html(table, intervals=False)).texts()
    assert [[text.strip("*") for text in row] for row in grid[2:]] == wanted
    assert grid[0] == ["k", "defender", *["certified"] * 2, *["clean"] * 2]
    assert grid[1] == ["k", "defender", *["square:2 (0.5 %)", "square:4 (2.0 %)"] * 2]

    rows = latex_rows(latex(table))
    bare = [
        [re.sub(r"\\textbf\{(.*?)\}|\\multirow\{\d+\}\{\*\}\{(.*?)\}", r"\1\2", c) for c in r] for r in rows
    ]
    assert [row[1:] for row in bare[2:]] == [row[1:] for row in wanted]
    assert [row[0] for row in bare[2:] if row[0]] == [f"Top-{k}" for k in ks]

    lines = markdown(table).split("\n")[4:-1]
    assert [[c.strip(" *") for c in line.strip("|").split("|")] for line in lines] == wanted


def test_intervals_are_those_of_the_accuracy():
    results = run()
    row = results.accuracy([1], confidence=0.8).iloc[0]
    table = paper_table([results], [1], confidence=0.8)
    cell = table.rows[0].cells[0]
    assert (cell.value, cell.low, cell.high) == tuple(row[f"certified{end}"] for end in ("", "_low", "_high"))
    text = f"[{100 * row['certified_low']:.1f}, {100 * row['certified_high']:.1f}]"
    assert f"<small>{text}</small>" in html(table)
    assert text in latex(table, intervals=True)
    assert text in markdown(table, intervals=True).replace("\\", "")
    for draw in (html, latex, markdown):
        assert "80" in draw(table, intervals=True).split("In brackets")[1]
        assert text not in draw(table, intervals=False).replace("\\", "")
        assert "In brackets" not in draw(table, intervals=False)


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ([0.5, 0.6, 0.4], [False, True, False]),
        ([0.6, 0.6, 0.4], [True, True, False]),
        # 70.31 and 70.34 are both shown as 70.3.
        ([0.7031, 0.7034, 0.7], [True, True, False]),
        ([0.7031, 0.7036, None], [False, True, False]),
        ([0.0, 0.0, None], [True, True, False]),
        # Larger as a number, though not as a text.
        ([0.099, 0.1, 1.0], [False, False, True]),
        ([0.6], [False]),
        ([0.6, None], [False, False]),
        ([None, None], [False, False]),
    ],
)
def test_the_best_are_bold_and_all_of_them(values, best):
    rows = with_best([Row(("x",), (Cell(value),)) for value in values])
    assert [row.cells[0].is_best for row in rows] == best


def test_the_best_is_sought_for_each_k_and_column():
    results = run(images=1000, seed=3)
    table = paper_table([results], [1, 2, 3])
    for k in (1, 2, 3):
        block = [row for row in table.rows if row.labels[0] == f"Top-{k}"]
        assert len(block) == 2
        for column in range(4):
            texts = [row.cells[column].text for row in block]
            top = max(texts, key=float)
            assert [row.cells[column].is_best for row in block] == [text == top for text in texts]
    text = html(table, intervals=False)
    assert text.count("<strong>") == sum(cell.is_best for row in table.rows for cell in row.cells) > 0
    assert text.count("<strong>") == latex(table).count(r"\textbf{") == markdown(table).count("**") / 2


def test_html_is_a_whole_table_with_scopes():
    table = paper_table([run("one"), run("two", seed=1)], [1, 5])
    grid = Grid(html(table))
    texts = grid.texts()
    assert all(len(row) == 3 + 4 for row in texts)
    assert grid.caption == table.caption
    for tag, attributes, _, _ in grid.attributes:
        assert (tag == "th") == ("scope" in attributes)
    scopes = [attributes["scope"] for tag, attributes, _, _ in grid.attributes if tag == "th"]
    assert {scope: scopes.count(scope) for scope in scopes} == {
        "col": 3 + 4,
        "colgroup": 2,
        "rowgroup": 2,
        "row": 2 * 8,
    }


def test_names_are_escaped():
    runs = [run(UGLY), run("</table>", seed=1, defenders=("costcert", "<i>plugin</i>"))]
    table = paper_table(runs, [1])
    text = html(table)
    assert "<b>" not in text
    assert "<i>" not in text
    assert text.count("</table>") == 1
    names = [row[2] for row in Grid(text).texts()[2:-1]]
    assert set(names) == {UGLY, "</table>"}
    assert "<i>plugin</i>" in [row[1] for row in Grid(text).texts()]

    drawn = latex(table)
    assert braces_match(drawn)
    assert {len(row) for row in latex_rows(drawn)} == {3 + 4}
    for sign in "%&#$_":
        body = drawn.split("\n", 1)[1]
        stripped = re.sub(r"\\[\\%&#$_{}]|\$\\(spadesuit|star)\$| & ", "", body)
        assert sign not in stripped.replace("&  &", "").replace("\n&", "\n"), sign
    drawn = drawn.replace(r"\allowbreak{}", "")
    assert r"50\% \textless{}b\textgreater{}of\_it" in drawn
    assert r"\textbackslash{}n {[}z] {*}q{*} `c` -{}- é" in drawn

    tokens = MarkdownIt("commonmark").enable("table").parse(markdown(table))
    cells = ["".join(t.content for t in each.children) for each in tokens if each.type == "inline"]
    assert UGLY in cells
    assert "</table>" in cells
    assert "html_inline" not in {t.type for each in tokens if each.children for t in each.children}


def test_markdown_is_a_table_with_bold_cells():
    table = paper_table([run(images=1000)], [1, 5])
    tokens = MarkdownIt("commonmark").enable("table").parse(markdown(table))
    kinds = [token.type for token in tokens]
    assert kinds.count("th_open") == 2 + 4
    assert kinds.count("td_open") == 4 * (2 + 4)
    bold = sum(t.type == "strong_open" for each in tokens if each.children for t in each.children)
    assert bold == sum(cell.is_best for row in table.rows for cell in row.cells) > 0


@cache
def many_tables():
    """Tables of all kinds: few and many patches and runs, long names, published numbers, leaderboards."""
    sides = (14, 23, 32, 39, 64, 96, 112)
    patches = [f"square:{side}" for side in sides]
    large = {"classes": 1000, "image_size": (224, 224)}
    small = run("mine", patches=patches[:3], **large)
    many = run("a", patches=[*patches, "rectangle:112x100", "2*square:112"], **large)
    defenders = ("costcert", "costcert-masks", "patchguard", "cbn", "drs")
    full = run(
        "vit_base_patch16_224.augreg2_in21k_ft_in1k-" * 3, patches=patches, defenders=defenders, **large
    )
    ugly = run(UGLY, patches=patches[:2], seed=1, **large)
    same = [
        run(name, patches=patches[:2], seed=number, **large) for number, name in enumerate(("x", "[x]", UGLY))
    ]
    imagenet = published("imagenet")
    return {
        "one run": paper_table([small]),
        "nine patches": paper_table([many]),
        "beside the paper": paper_table([full], published=imagenet),
        "several runs": paper_table([*same, ugly], [1, 5]),
        "the paper": paper_table([], published=imagenet),
        "a leaderboard": leaderboard([small, many], range(1, 6)),
        "a leaderboard with the paper": leaderboard([full, ugly], range(1, 11), imagenet, mixed=True),
    }


STYLED = [(style, intervals) for style in STYLES for intervals in (False, True)]


@pytest.mark.parametrize(
    ("style", "intervals"),
    [pytest.param(*each, marks=[] if all(each) else pytest.mark.slow) for each in STYLED],
)
def test_latex_shows_every_number_and_is_estimated_to_fit(style, intervals):
    for name, table in many_tables().items():
        parts = list(_parts(table, style == "narrow", STYLES[style].width, intervals))
        assert all(_total(part, STYLES[style].width, intervals) <= STYLES[style].width for part in parts), (
            name
        )
        # At least 19 points for each column of numbers, and 6 between two columns.
        most = (STYLES[style].width + 6) / (19 + 6)
        assert max(len(part.columns) for part in parts) <= most
        wanted = [cell for row in table.rows for cell in row.cells if cell.value is not None]
        shown = [cell for part in parts for row in part.rows for cell in row.cells if cell.value is not None]
        key = lambda cell: (cell.value, cell.is_best, cell.interval)  # noqa: E731
        assert sorted(shown, key=key) == sorted(wanted, key=key), name
        drawn = latex(table, style=style, intervals=intervals)
        assert drawn.startswith(f"% Style {style}: fits ")
        assert "Needs \\usepackage{booktabs}\n" in drawn
        assert braces_match(drawn)
        assert len(tabulars(drawn)) == len(parts)
        assert all(len({len(row) for row in rows}) == 1 for rows in tabulars(drawn))
        for note in table.notes:
            assert [note in part.notes for part in parts] == [False] * (len(parts) - 1) + [True]


def test_narrow_tables_are_of_one_patch_each_and_wide_ones_of_several():
    table = paper_table([run()], [1, 5])
    captions = re.findall(r"\\caption\{(.*)\}\\smallskip", latex(table, style="narrow"))
    assert [caption.split("Patch: ")[1] for caption in captions] == [
        r"square:2 (0.5 \%).",
        r"square:4 (2.0 \%).",
    ]
    assert len(tabulars(latex(table, style="wide"))) == 1
    assert r"\begin{table*}" in latex(table)
    with pytest.raises(SpellingError, match=r"unknown style 'narow' \(did you mean 'narrow'\?\)"):
        latex(table, style="narow")


@pytest.mark.parametrize(("style", "intervals"), STYLED)
def test_latex_compiles_and_fits(tmp_path, style, intervals):
    engine = shutil.which("pdflatex") or shutil.which("tectonic")
    if engine is None:
        pytest.skip("neither pdflatex nor tectonic is installed")
    # One document for all tables, because the engine takes long to start; each float on a page of its own.
    begin, end = r"\begin{document}", r"\end{document}"
    tables = many_tables().values()
    drawn = [latex(table, style=style, intervals=intervals, standalone=True) for table in tables]
    preamble = drawn[0].split(begin)[0]
    floats = "\n\n".join(text.split(begin)[1].split(end)[0] for text in drawn)
    text = preamble + begin + floats.replace("\n\n", "\n\\clearpage\n") + end
    (tmp_path / "table.tex").write_text(text, encoding="utf-8")
    options = ["-interaction=nonstopmode", "-halt-on-error"] if engine.endswith("pdflatex") else []
    done = subprocess.run([engine, *options, "table.tex"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "table.pdf").stat().st_size > 1000
    said = done.stdout + done.stderr
    assert not re.findall(r"Overfull .hbox.*|Float too large.*", said)


@pytest.mark.parametrize("standalone", [False, True])
def test_latex_is_well_formed(standalone):
    drawn = latex(
        paper_table([], published=published("imagenet")), intervals=True, label="tab:x", standalone=standalone
    )
    assert braces_match(drawn)
    assert {len(row) for row in latex_rows(drawn)} == {2 + 6}
    begun = re.findall(r"\\begin\{(\w+)\}", drawn)
    assert sorted(begun) == sorted(re.findall(r"\\end\{(\w+)\}", drawn))
    assert ("document" in begun) == standalone
    assert r"\label{tab:x}" in drawn
    assert r"PG$\spadesuit$" in drawn
    assert r"PG$\star$" in drawn
    # What pdfLaTeX's own fonts cannot show is spelled out.
    assert drawn.isascii()


def test_several_runs_stand_by_defender():
    runs = [run("one"), run("two", seed=1), run("one", seed=2, defenders=("drs", "costcert"))]
    table = paper_table(runs, [1])
    assert table.stub == ("k", "defender", "run")
    assert [row.labels[1:] for row in table.rows] == [
        ("CostCert", "one"),
        ("CostCert", "two"),
        ("CostCert", "one (2)"),
        ("PatchGuard", "one"),
        ("PatchGuard", "two"),
        ("DRS", "one (2)"),
    ]
    assert paper_table(runs[:1], [1]).stub == ("k", "defender")


def test_patches_of_several_runs_share_columns():
    runs = [run("one", patches=("square:2", "square:4")), run("two", patches=("rectangle:2x8", "square:4"))]
    table = paper_table(runs, [1])
    heads = [column[1] for column in table.columns[:3]]
    assert heads == ["square:2 (0.5 %)", "square:4 (2.0 %)", "rectangle:2x8 (2.0 %)"]
    shown = {row.labels[1:]: [cell.text == "n/a" for cell in row.cells[:3]] for row in table.rows}
    assert shown["CostCert", "one"] == [False, False, True]
    assert shown["CostCert", "two"] == [True, False, False]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (("square:35", 224), ("square:35", 224), True),
        (("square:35", 224), ("square:34", 224), False),
        (("square:32", 224), ("square:55", 384), True),
        (("square:32", 224), ("square:54", 384), False),
        (("square:32", 224), ("square:4", 28), True),
        (("square:23", 224), ("square:2", 28), False),
        (("rectangle:32x32", 224), ("square:32", 224), False),
        (("2*square:16", 224), ("2*square:16", 224), True),
        (("2*square:16", 224), ("2*square:4", 56), False),
    ],
)
def test_squares_of_the_same_share_are_the_same_threat(one, other, same):
    first, second = (Threat(cc.parse_patch(patch), (side, side)) for patch, side in (one, other))
    assert (first.distance(second) is not None) == same
    assert first.distance(second) == second.distance(first)
    assert match_patches([first], [second]) == ({0: 0} if same else {})


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (("original:2", {(32, 32)}, "a"), ("original:2", {(32, 32)}, "b"), True),
        (("original:2", {(32, 32)}, "a"), ("original:2", {(64, 64)}, "b"), False),
        (("original:2", {(32, 32)}, "a"), ("original:2", {(32, 32), (64, 64)}, "b"), False),
        (("original:2", {(32, 32)}, None), ("original:2", (), None), False),
        (("original:2", {(32, 32)}, "a"), ("original:2", (), "a"), True),
        (("original:1%", {(32, 32)}, "a"), ("original:1%", {(64, 64)}, "b"), True),
        (("original:1%", {(32, 32)}, "a"), ("original:2%", {(32, 32)}, "a"), False),
    ],
)
def test_pixels_of_originals_are_the_same_threat_on_pictures_of_the_same_sizes(one, other, same):
    first, second = (
        Threat.of(patch, (24, 24))._replace(originals=frozenset(sizes), data=data)
        for patch, sizes, data in (one, other)
    )
    assert (first.distance(second) is not None) == same
    assert first.distance(second) == second.distance(first)


def test_the_nearest_square_is_taken_once():
    ours = [Threat(cc.Square(side), (224, 224)) for side in (14, 16, 15)]
    assert match_patches([Threat(cc.Square(2), (28, 28))], ours) == {0: 1}
    assert match_patches(ours, [Threat(cc.Square(2), (28, 28))]) == {1: 0}


def test_a_threat_is_spelled_with_its_share():
    def shown(patch, side):
        return str(Threat(cc.parse_patch(patch), (side, side)))

    assert shown("square:35", 224) == "square:35 (2.4 %)"
    assert shown("square:1", 224) == "square:1 (0.002 %)"
    assert shown("2*square:16", 224) == "2*square:16 (1.0 %)"
    assert shown("shape:010/111", 10) == "shape:010/111 (4.0 %)"
    assert Threat.of("2*square:7", (28, 28)).share == pytest.approx(1 / 8)


def test_published_rows_stand_beside_ours():
    results = run(
        "mine",
        classes=1000,
        image_size=(224, 224),
        patches=("square:32", "square:39", "square:64"),
        defenders=("costcert", "cbn"),
    )
    table = paper_table([results], [1, 5], published("imagenet"))
    block = [row for row in table.rows if row.labels[0] == "Top-5"]
    assert [(row.labels[1], row.is_published) for row in block] == [
        ("CostCert", False),
        ("CC", True),
        ("PG♠/CBN", False),
        ("CBN⋆", True),
        ("PG♠", True),
        ("PG⋆", True),
        ("PG", True),
    ]
    assert [cell.text for cell in block[1].cells] == ["66.4", "64.0", "n/a", "87.7", "87.7", "n/a"]
    assert [cell.text for cell in block[3].cells] == ["10.0", "5.0", "n/a", "83.6", "83.6", "n/a"]
    assert block[1].labels[2] == "Zhou et al., Table 1"
    assert "2 % (32 px) is in the column of square:32" in " ".join(table.notes)
    assert "Left out" in " ".join(table.notes)
    assert "1 % (23 px)" in " ".join(table.notes).split("Left out")[1]
    assert "half a pixel" in " ".join(table.notes)
    top_1 = {
        row.labels[1]: [cell.text for cell in row.cells] for row in table.rows if row.labels[0] == "Top-1"
    }
    assert top_1["CBN⋆"] == ["n/a", "n/a", "n/a", "62.0", "62.0", "n/a"]
    published_rows = [at for tag, _, at, _ in Grid(html(table)).attributes if at.get("class") == "published"]
    assert published_rows


def test_published_numbers_that_fit_no_patch_are_left_out_with_a_note():
    results = run("mine", classes=43, image_size=(224, 224), patches=("square:96",))
    table = paper_table([results], [1], published("gtsrb"))
    assert not any(row.is_published for row in table.rows)
    assert table.stub == ("k", "defender")
    assert "0.4 % (14 px), 2.4 % (35 px)" in " ".join(table.notes)


def test_published_numbers_of_other_classes_are_refused():
    with pytest.raises(CostcertError, match="43"):
        paper_table([run(classes=10)], [1], published("gtsrb"))
    table = paper_table([run(classes=10)], [1], published("gtsrb"), mixed=True)
    assert "not comparable" in table.notes[0]


@pytest.mark.parametrize(
    ("results", "ks", "sentence"),
    [
        ([], [1], "no run to show"),
        ([run()], [], "got no k"),
        ([run(classes=3)], [4, 5], "there are 3 classes"),
        ([run()], [0], "k must be at least 1"),
    ],
    ids=["no run", "no k", "k too large", "k too small"],
)
def test_nothing_to_show_is_refused(results, ks, sentence):
    with pytest.raises(CostcertError, match=sentence):
        paper_table(results, ks)


def test_only_the_k_there_are_classes_for_are_shown():
    assert [row.labels[0] for row in paper_table([run(classes=3, defenders=("costcert",))]).rows] == [
        "Top-1",
        "Top-2",
        "Top-3",
    ]
    with pytest.raises(CostcertError, match="nothing is published"):
        paper_table([], [10], published("imagenet"))


def test_csv_and_json_hold_every_digit():
    results = run(UGLY, images=37)
    truth = results.accuracy([1, 5]).to_dict(orient="records")
    read = list(csv.DictReader(io.StringIO(csv_text([results], [1, 5]))))
    rows = json.loads(json_text([results], [1, 5]))["accuracy"]
    assert len(read) == len(rows) == len(truth) == 8
    for line, row, wanted in zip(read, rows, truth, strict=True):
        for key, value in wanted.items():
            assert row[key] == value
            assert type(value)(line[key]) == value
        assert line["run"] == row["run"] == UGLY
        assert (row["model"], row["data"], row["passes"]) == ("strip:small", "sample (test)", 28)
        assert row["area_share"] == cc.parse_patch(row["patch"]).side ** 2 / 28**2


def test_csv_and_json_hold_published_numbers_whole():
    rows = tidy_rows([], range(1, 6), published("imagenet"))
    assert len(rows) == 22 * 3
    assert {row["certified"] for row in rows if row["defender"] == "CBN⋆" and row["k"] == 1} == {None}
    assert next(row for row in rows if row["defender"] == "CC")["clean"] == 0.703
    lines = csv_text([], [1], published("imagenet")).split("\n")
    assert lines[1].endswith(",0.62,,,,,")
    assert "Table 1" in json.loads(json_text([], [1], published("imagenet")))["published"]


def test_a_table_as_csv_keeps_its_layout():
    table = paper_table([run()], [1])
    lines = list(csv.reader(io.StringIO(csv_table(table))))
    assert lines[0][:5] == [
        "k",
        "defender",
        "certified square:2 (0.5 %)",
        "certified square:2 (0.5 %) low",
        "certified square:2 (0.5 %) high",
    ]
    assert float(lines[1][2]) == table.rows[0].cells[0].value
    assert {len(line) for line in lines} == {2 + 3 * 4}


def test_runs_that_do_not_say_where_they_come_from_are_shown_too():
    results = run(made=False)
    assert "40 images:" in paper_table([results], [1]).caption
    assert tidy_rows([results], [1])[0]["model"] is None


# The paper itself.


def paper_rows(label):
    """(k, row name, [(number or None, is bold)]) of a table of the paper's source."""
    text = PAPER.read_text(encoding="utf-8").split(f"\\label{{{label}}}")[1].split(r"\end{tabular}")[0]
    k, rows = None, []
    for line in text.split(r"\hline"):
        for part in re.split(r"\\cline\{[\d-]+\}", line):
            if found := re.search(r"Top-(\d)", part):
                k = int(found[1])
            cells = part.strip().removesuffix(r"\\").split("&")
            values = [re.search(r"(\\textbf\{)?(\d+\.\d|n/a)", cell) for cell in cells[2:]]
            if k is None or not values or not all(values):
                continue
            name = re.sub(r"\\cite\{.*?\}", "", cells[1]).strip()
            name = name.replace(r"$_\star$", "⋆").replace(r"$_\spadesuit$", "♠")
            numbers = [(None if v[2] == "n/a" else float(v[2]), bool(v[1])) for v in values]
            rows.append((k, name, numbers))
    return rows


# Where a table of the paper has the columns of a data set: {(metric, patch): column}.
PLACES = {
    "imagenet": (
        "tab:ImageNet",
        {
            (metric, patch): 3 * m + p
            for m, metric in enumerate(("clean", "certified"))
            for p, patch in enumerate(("1 %", "2 %", "3 %"))
        },
    ),
    **{
        name: (
            "tab:GTSRB&CIFAR100",
            {
                (metric, patch): 4 * d + 2 * p + m
                for m, metric in enumerate(("clean", "certified"))
                for p, patch in enumerate(("0.4 %", "2.4 %"))
            },
        )
        for d, name in enumerate(("gtsrb", "cifar100"))
    },
}


@pytest.fixture
def paper():
    if not PAPER.is_file():
        pytest.skip(f"COSTCERT_TEST_DATA names no folder with {PAPER.name}, the source of the paper")
    return PAPER.read_text(encoding="utf-8")


@pytest.mark.parametrize(("dataset", "rows"), [("imagenet", 22), ("gtsrb", 15), ("cifar100", 15)])
def test_every_published_number_is_the_papers(paper, dataset, rows):
    label, places = PLACES[dataset]
    truth = paper_rows(label)
    assert len(truth) == rows
    printed = {
        (name, metric, patch, k): None if numbers[column][0] is None else round(numbers[column][0] / 100, 6)
        for k, name, numbers in truth
        for (metric, patch), column in places.items()
    }
    assert published(dataset).shares == printed


@pytest.mark.parametrize("dataset", DATASETS)
def test_the_published_table_is_drawn_as_in_the_paper(paper, dataset):
    """The same rows in the same order, the same digits, the same ones in bold; certified comes first."""
    label, places = PLACES[dataset]
    numbers = published(dataset)
    table = paper_table([], published=numbers)
    order = [(metric, patch.spelled) for metric in ("certified", "clean") for patch in numbers.patches]
    assert [
        (
            row.labels,
            [(None if cell.value is None else float(cell.text), cell.is_best) for cell in row.cells],
        )
        for row in table.rows
    ] == [((f"Top-{k}", name), [row[places[case]] for case in order]) for k, name, row in paper_rows(label)]


@pytest.mark.parametrize("dataset", DATASETS)
def test_what_is_said_about_published_numbers_is_in_the_paper(paper, dataset):
    numbers = published(dataset)
    flat = " ".join(paper.split())
    for author in numbers.source.authors:
        assert author in flat
    title = re.search(r"\\title\{(.*?)\\author", flat)[1].replace("$", "").strip(" }")
    assert " ".join(title.split()) == numbers.source.title
    tables = re.findall(r"\\begin\{table\}.*?\\label\{(.*?)\}", paper, re.DOTALL)
    assert tables[numbers.source.table - 1] == PLACES[dataset][0]
    for patch in numbers.patches:
        share = re.escape(patch.spelled.replace(" ", "\\"))
        assert re.search(rf"{share}\s+\([^)]*?{patch.side} pixels\)", flat), patch
    assert re.search(rf"{numbers.classes}-class {numbers.title}", flat)
    assert f"{numbers.images // 1000}k" in flat or str(numbers.images) in flat
    assert "ViT-b16-224" in flat
    assert "adopt 19 as the size of column ablation" in flat
    assert {defender.model for defender in numbers.defenders if defender.ablation} == {"ViT-b16-224"}
    assert {defender.ablation for defender in numbers.defenders} <= {"columns:19", None}


@pytest.mark.parametrize("dataset", [*DATASETS, *PEERS])
def test_published_shares_are_spelled_as_the_pixels_are(dataset):
    numbers = published(dataset)
    for patch in numbers.patches:
        digits = len(patch.spelled.partition(" ")[0].partition(".")[2])
        share = 100 * Threat(patch.patch, numbers.image_size).share
        assert f"{share:.{digits}f} %" == patch.spelled
    for defender in numbers.defenders:
        if dataset in DATASETS:
            assert defender.defender in {"costcert", "patchguard", "cbn"}
        assert numbers.passes(defender) == (224 if defender.ablation else None)


# Other systems: where their numbers were read, and certified and clean top-1 in percent, patch by patch.
SYSTEMS = {
    "imagenet-peers": {
        "PatchCleanser + greedy cutout": ("Saha et al. 2023", "n/a 64.9 62.3", "n/a 82.4 n/a"),
        "PatchCleanser + random cutout": ("Saha et al. 2023, abstract", "n/a n/a 58.1", "n/a n/a n/a"),
        "PatchCleanser": ("Xiang et al. 2022, Table 2", "n/a 62.1 n/a", "n/a 83.9 n/a"),
        "PatchCURE": ("Xiang et al. 2024, Table 3", "n/a 44.2 n/a", "n/a 78.3 n/a"),
        "ECViT": ("Chen et al. 2022, abstract", "n/a 41.7 n/a", "n/a 78.6 n/a"),
        "ViP": ("leaderboard", "n/a 41.4 n/a", "n/a 70.8 n/a"),
        "smoothed-vit": ("Salman et al. 2022, Table 1", "n/a 38.3 n/a", "n/a 69.3 n/a"),
        "DRS, WRN-101-2": ("leaderboard", "n/a 28.1 n/a", "n/a 61.4 n/a"),
        "DRS": ("leaderboard", "n/a 14.0 n/a", "n/a 44.4 n/a"),
        "PatchGuard": ("Zhou et al. 2025, Table 1", "32.2 26.0 19.7", "55.1 54.6 54.1"),
        "BagCert": ("leaderboard", "n/a 22.7 n/a", "n/a 45.3 n/a"),
    },
    "cifar10-peers": {
        "smoothed-vit": ("Salman et al. 2022, Table 6", "70.0 n/a", "85.5 n/a"),
        "BagCert": ("Metzen and Yatsura 2021, abstract", "n/a 60.0", "n/a 86.0"),
        "DRS": ("Levine and Feizi 2020, abstract", "n/a 57.6", "n/a 83.8"),
        "IBP": ("Levine and Feizi 2020, abstract", "n/a 30.3", "n/a 47.8"),
    },
}


@pytest.mark.parametrize("dataset", PEERS)
def test_other_systems_are_shown_with_their_sources(dataset):
    numbers = published(dataset)
    table = paper_table([], [1], numbers)
    shown = {row.labels[1]: (row.labels[2], [cell.text for cell in row.cells]) for row in table.rows}
    assert shown == {
        name: (cited, [*certified.split(), *clean.split()])
        for name, (cited, certified, clean) in SYSTEMS[dataset].items()
    }
    notes = " ".join(table.notes)
    for each in numbers.defenders:
        assert each.cited == numbers.cited(each)
        assert re.search(r"arXiv:\d{4}\.\d{5}|leaderboard", each.description), each
        assert each.description in notes
    rows = tidy_rows([], range(1, 6), numbers)
    assert [row["k"] for row in rows] == [1] * len(numbers.defenders) * len(numbers.patches)
    for row in rows:
        assert None in (row["certified"], row["clean"]) or row["certified"] <= row["clean"]
    assert json.loads(json_text([], [1], numbers))["published"] == numbers.source.full


def test_patchguard_of_others_is_the_one_in_the_table_of_the_paper():
    paper, peers = published("imagenet"), published("imagenet-peers")
    for metric in ("clean", "certified"):
        for patch in ("1 %", "2 %", "3 %"):
            assert peers.shares["PatchGuard", metric, patch, 1] == paper.shares["PG⋆", metric, patch, 1]


def test_the_reasons_for_what_is_left_out_are_in_the_notes():
    notes = " ".join(paper_table([], [1], published("imagenet-peers")).notes)
    for reason in ("strides 5 and 10 are left out", "row with stride 10 is left out", "Clipped BagNet"):
        assert reason in notes


def test_the_budgets_of_vip_and_smoothed_vit_with_strides_are_too_small():
    """Why their rows with strides are left out: columns of 19 and a patch of 32 pixels at 224."""
    for stride, allowed, counted in ((5, 10, 11), (10, 5, 6)):
        strided = cc.Columns(19, stride=stride)
        assert touched(strided, cc.Square(32), (224, 224)).delta == counted > allowed


def test_other_systems_stand_beside_a_run_of_masks():
    mine = run(
        "mine", classes=1000, image_size=(224, 224), patches=("square:32",), defenders=("patchcleanser",)
    )
    rows = paper_table([mine], [1], published("imagenet-peers")).rows
    assert [row.labels[1] for row in rows][:3] == [
        "PatchCleanser",
        "PatchCleanser + greedy cutout",
        "PatchCleanser + random cutout",
    ]
    assert [row.is_published for row in rows] == [False] + [True] * len(SYSTEMS["imagenet-peers"])


@pytest.mark.parametrize(
    ("side", "patch", "column"),
    [(32, 5, 1), (32, 2, 0), (224, 35, 1), (224, 14, 0), (32, 4, None), (224, 31, None)],
)
def test_other_systems_on_small_images_are_matched_by_share(side, patch, column):
    """5 of 32 pixels are 35 of 224; 4 of 32, and 31 of 224, are smaller by more than half a pixel of 32."""
    mine = run("mine", image_size=(side, side), patches=(f"square:{patch}",), data="torchvision:CIFAR10")
    table = paper_table([mine], [1], published("cifar10-peers"))
    shown = {row.labels[1]: row.cells[0].text for row in table.rows if row.is_published}
    assert shown == (
        {}
        if column is None
        else {name: certified.split()[column] for name, (_, certified, _) in SYSTEMS["cifar10-peers"].items()}
    )


@pytest.mark.parametrize(
    ("data", "doubted"),
    [("torchvision:CIFAR10", False), ("folder:cifar-10/test", False), ("torchvision:FashionMNIST", True)],
)
def test_data_of_another_name_are_compared_with_a_note(data, doubted):
    """Names are not standardised, and ten classes may be clothes."""
    mine = run("mine", image_size=(32, 32), patches=("square:5",), data=data)
    notes = " ".join(paper_table([mine], [1], published("cifar10-peers")).notes)
    assert ("but the published numbers are on CIFAR-10 (test)" in notes) == doubted
    nameless = run("mine", image_size=(32, 32), patches=("square:5",), made=False)
    assert "same pictures" not in " ".join(paper_table([nameless], [1], published("cifar10-peers")).notes)


def test_an_unknown_data_set_is_answered_with_the_nearest():
    with pytest.raises(
        SpellingError, match=r"did you mean 'imagenet'.*gtsrb, cifar100, imagenet-peers, cifar10-peers"
    ):
        published("ImageNet1k")
    with pytest.raises(SpellingError, match="no results on 'mnist'"):
        published("mnist")
