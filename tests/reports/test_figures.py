"""Figures show the numbers of the results, whatever the results are, and are the same bytes each time."""

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from test_tables import run

import costcert as cc
from costcert.certification.accuracy import Tally, wilson
from costcert.errors import CostcertError
from costcert.reports import patch_names
from costcert.reports.figures import (
    COLUMN,
    FIGURES,
    PAGE,
    accuracy_by_class,
    accuracy_by_k,
    accuracy_by_size,
    as_bytes,
    as_files,
    check_formats,
    comparison,
    figures,
    min_k_boxes,
    min_k_histogram,
    title_and_note,
)
from costcert.reports.figures.accuracy import shown_ks
from costcert.reports.figures.boxes import box
from costcert.reports.figures.histogram import bins
from costcert.reports.published import published
from costcert.reports.results import ByClass, Results
from costcert.reports.style import defender_title, looks
from places import TESTS
from waiting import HANGS

DEFENDERS = ("costcert", "costcert-masks", "patchguard", "cbn", "drs")
SVG = "{http://www.w3.org/2000/svg}"
DC = "{http://purl.org/dc/elements/1.1/}"


# Where another process finds this file, and what it imports.
MODULES = f"{TESTS / 'reports'},{TESTS}"
CLASSIFIER = cc.Defence(cc.Columns(4))


def made_up(
    num_classes=10,
    patches=(2, 4, 6),
    defenders=DEFENDERS,
    images=300,
    *,
    by_class=False,
    class_names=None,
    min_k=None,
):
    """Ranks and min-ks drawn at random, larger for later defenders and larger patches."""
    rng = np.random.default_rng([num_classes, images])
    size = (224, 224)
    truth = rng.integers(num_classes, size=images)
    found = {}
    for place, patch in enumerate(cc.Square(p) if isinstance(p, int) else cc.parse_patch(p) for p in patches):
        for turn, defender in enumerate(defenders):
            rank = np.minimum(rng.geometric(0.8, images), num_classes)
            spread = (1 + rng.exponential(0.4 + place + turn, images) ** 3).astype(int)
            drawn = np.minimum(np.maximum(rank, spread), num_classes)
            found[defender, patch] = rank, drawn if min_k is None else np.full(images, min_k)
    tally = Tally()
    tally.add(
        cc.Certificates(
            found,
            image_ids=np.arange(images).astype(str),
            num_classes=num_classes,
            image_size=size,
            classifier=CLASSIFIER,
        )
    )
    votes = {"num_classes": num_classes, "image_size": list(size), "class_names": class_names}
    counts = None
    if by_class:
        ks = [k for k in (1, 5) if k < num_classes]
        clean, certified = (
            {
                (defender, str(patch), k): np.bincount(truth[values[which] <= k], minlength=num_classes)
                for (defender, patch), values in found.items()
                for k in ks
            }
            for which in (0, 1)
        )
        counts = ByClass(np.bincount(truth, minlength=num_classes), clean, certified)
    return Results("made up", {"votes": votes}, tally, counts)


def svg(figure):
    return as_bytes(figure, "svg").decode()


def drawn_figures(results, width=PAGE):
    return {name: figure.draw(width=width) for name, figure in figures(results).items()}


def write_figures(results, folder, formats=("svg", "pdf")):
    files = as_files(figures(results), Path(folder), formats)
    Path(folder).mkdir(exist_ok=True)
    for path, content in files:
        path.write_bytes(content)
    return [path for path, _ in files]


def plain(text):
    """The text in one line, with ordinary spaces."""
    return " ".join(text.split())


def titles(figure):
    """The titles of the panels."""
    return [axes.get_title("left") for axes in figure.axes]


def lines(axes):
    return {each.get_label(): each for each in axes.lines if not each.get_label().startswith("_")}


@pytest.fixture(scope="module")
def small():
    return made_up(by_class=True, class_names=[f"kind {label}" for label in range(10)])


@pytest.fixture(scope="module")
def large():
    """The size of ImageNet: 1,000 classes, 7 sizes, 50,000 images."""
    return made_up(1000, (16, 32, 48, 64, 80, 96, 112), images=50_000, by_class=True)


@pytest.fixture(scope="module")
def drawn(small):
    return drawn_figures(small)


def test_accuracy_by_size_draws_the_accuracies(small):
    figure = accuracy_by_size(small, ks=(1, 5))
    table = small.accuracy([1, 5]).set_index(["k", "defender", "patch"])
    assert [axes.get_title("left") for axes in figure.axes] == ["Top 1", "Top 5"]
    for k, axes in zip((1, 5), figure.axes, strict=True):
        found = lines(axes)
        assert set(found) == {f"{name} {kind}" for name in DEFENDERS for kind in ("clean", "certified")}
        for name in DEFENDERS:
            for kind in ("clean", "certified"):
                assert found[f"{name} {kind}"].get_xdata().tolist() == [2, 4, 6]
                expected = [100 * table.loc[(k, name, f"square:{side}"), kind] for side in (2, 4, 6)]
                assert found[f"{name} {kind}"].get_ydata().tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("num_classes", "titles"),
    [(100, ["Top 5", "Top 10"]), (10, ["Top 5"]), (4, ["Top 3"]), (2, ["Top 1"])],
)
def test_only_k_below_the_number_of_classes_say_something(num_classes, titles):
    figure = accuracy_by_size(made_up(num_classes))
    assert [axes.get_title("left") for axes in figure.axes] == titles


def test_squares_are_drawn_by_size_in_whatever_order_they_were_certified():
    [axes] = accuracy_by_size(made_up(patches=(48, 16, 32))).axes
    assert lines(axes)["costcert certified"].get_xdata().tolist() == [16, 32, 48]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["16", "32", "48"]


def test_patches_that_are_no_squares_stand_side_by_side():
    results = made_up(patches=("rectangle:16x64", "2*square:16", "square:8"))
    [axes] = accuracy_by_size(results, ks=[5]).axes
    table = results.accuracy(5).set_index(["defender", "patch"])
    ticks = [plain(tick.get_text()) for tick in axes.get_xticklabels()]
    assert ticks == ["16 × 64 px", "2 of 16 × 16 px", "8 × 8 px"]
    for name in DEFENDERS:
        line = lines(axes)[f"{name} certified"]
        assert np.rint(line.get_xdata()).tolist() == [0, 1, 2]
        assert line.get_linestyle() == "None"
        assert line.get_ydata().tolist() == pytest.approx(
            [100 * table.loc[(name, patch), "certified"] for patch in results.patches]
        )
    assert len(min_k_boxes(results).axes) == 1, "no order, so no growth"


def test_accuracy_by_k_draws_every_k_and_its_interval(small):
    figure = accuracy_by_k(small)
    table = small.accuracy(range(1, 10))
    assert titles(figure) == [patch_names.size_and_share(patch, small.image_size) for patch in small.patches]
    for patch, axes in zip(small.patches, figure.axes, strict=True):
        bands = dict(zip(DEFENDERS, axes.collections, strict=True))
        for name in DEFENDERS:
            rows = table[(table["patch"] == patch) & (table["defender"] == name)]
            line = lines(axes)[f"{name} certified"]
            assert line.get_xdata().tolist() == list(range(1, 10))
            assert line.get_ydata().tolist() == pytest.approx((100 * rows["certified"]).tolist())
            corners = bands[name].get_paths()[0].vertices
            for column in ("certified_low", "certified_high"):
                for k, share in zip(rows["k"], rows[column], strict=True):
                    assert np.isclose(corners, (k, 100 * share)).all(axis=1).any()


def test_accuracy_by_k_of_one_patch(small):
    [axes] = accuracy_by_k(small, 4).axes
    assert plain(axes.get_title("left")).startswith("4 × 4 px (")
    with pytest.raises(CostcertError, match=r"nothing was certified against square:5.*square:2, square:4"):
        accuracy_by_k(small, "square:5")


def test_shown_ks_are_all_or_all_small_ones():
    assert shown_ks(2) == [1]
    assert shown_ks(31) == list(range(1, 31))
    many = shown_ks(1000)
    assert many[:10] == list(range(1, 11))
    assert many[10:] == [20, 30, 50, 100, 200, 300, 500, 999]


def test_boxes_are_those_of_the_images_one_by_one():
    from matplotlib.cbook import boxplot_stats

    rng = np.random.default_rng(0)
    for _ in range(200):
        values = np.minimum(1 + rng.geometric(rng.uniform(0.05, 1), rng.integers(1, 40)), 30)
        expected = boxplot_stats(values)[0]
        found = box(np.bincount(values, minlength=31))
        assert found.marks == pytest.approx(
            [expected[key] for key in ("whislo", "q1", "med", "q3", "whishi")]
        )
        assert found.mean == pytest.approx(expected["mean"])


def test_min_k_boxes_draw_quartiles_means_and_growth(small):
    boxes, growth = min_k_boxes(small).axes
    values = {case: np.repeat(np.arange(11), counts) for case, counts in small.tally.min_ks.items()}
    means = {case: each.mean() for case, each in values.items()}
    bars = {container.get_label(): container for container in boxes.containers}
    medians = {each.get_label(): each for each in boxes.collections}
    for name in DEFENDERS:
        mine = [values[name, patch] for patch in small.patches]
        assert lines(boxes)[f"{name} mean"].get_ydata().tolist() == pytest.approx([v.mean() for v in mine])
        assert [line[0, 1] for line in medians[f"{name} median"].get_segments()] == pytest.approx(
            [np.median(each) for each in mine]
        )
        assert [bar.get_y() for bar in bars[f"{name} box"]] == pytest.approx(
            [np.quantile(each, 0.25) for each in mine]
        )
        assert [bar.get_y() + bar.get_height() for bar in bars[f"{name} box"]] == pytest.approx(
            [np.quantile(each, 0.75) for each in mine]
        )
    for name in DEFENDERS:
        line = lines(growth)[f"{name} ratio"]
        first, second, third = (means[name, patch] for patch in small.patches)
        assert line.get_xdata().tolist() == [4, 6]
        assert line.get_ydata().tolist() == pytest.approx([second / first, third / second])


def ticks(axis):
    return [plain(label.get_text()) for label in axis.get_ticklabels()]


@pytest.mark.parametrize(
    "num_classes", [3, *(pytest.param(count, marks=pytest.mark.slow) for count in (10, 43)), 1000]
)
def test_the_number_of_classes_is_no_promise(num_classes):
    """Min-k = number of classes says nothing, so no figure shows it as a number."""
    results = made_up(num_classes)
    boxes = min_k_boxes(results).axes[0]
    assert ticks(boxes.yaxis)[-1] == "no promise"
    assert boxes.get_yticks()[-1] == num_classes
    assert "no promise" in legend(min_k_histogram(results))
    for shown in (ticks(boxes.yaxis), legend(min_k_histogram(results))):
        assert not any(f"{num_classes:,}" in each.split() for each in shown)


MANY = ("16", "23", "rectangle:100x200", "2*square:16", "3*rectangle:16x64", "shape:010/111", "96")


@pytest.mark.slow
@pytest.mark.parametrize("width", [COLUMN, PAGE], ids=["column", "page"])
@pytest.mark.parametrize("name", FIGURES)
def test_with_many_patches_and_long_names_no_text_touches_another(name, width):
    results = made_up(
        43,
        MANY,
        by_class=True,
        class_names=[f"a long class name, such as ImageNet has, of number {n}" for n in range(43)],
    )
    figure = FIGURES[name].draw(results, width=width)
    svg(figure)
    axes_texts = [
        text
        for axes in figure.axes
        for text in (
            axes.title,
            axes._left_title,
            # The slanted labels below have overlapping frames, though their letters do not touch.
            *(
                each
                for each, place in zip(axes.get_xticklabels(), axes.get_xticks(), strict=True)
                if each.get_rotation() == 0 and axes.get_xlim()[0] <= place <= axes.get_xlim()[1]
            ),
            *(axes.get_yticklabels() if axes.get_subplotspec().is_first_col() else ()),
        )
        if text.get_text() and text.get_visible()
    ]
    boxes = [text.get_window_extent() for text in axes_texts]
    assert not overlaps(boxes)
    assert all(box.x0 >= -1 and box.x1 <= figure.bbox.x1 + 1 for box in boxes)


def test_min_k_is_on_a_logarithmic_axis_only_where_the_range_needs_it(small, large):
    assert min_k_boxes(small).axes[0].get_yscale() == "linear"
    assert min_k_boxes(large).axes[0].get_yscale() == "log"


@pytest.mark.parametrize("num_classes", [1, 2, 3, 5, 6, 7, 10, 11, 43, 100, 1000, 21841])
def test_bins_hold_each_min_k_once(num_classes):
    ranges = bins(num_classes)
    held = [k for low, high in ranges for k in range(low, high + 1)]
    assert held == list(range(1, num_classes + 1))
    assert ranges[-1] == (num_classes, num_classes)
    assert ranges[: min(5, num_classes - 1)] == [(k, k) for k in range(1, min(6, num_classes))]


def test_histogram_bars_are_shares_of_the_images(small):
    figure = min_k_histogram(small)
    for patch, axes in zip(small.patches, figure.axes, strict=True):
        found = dict.fromkeys(DEFENDERS, 0.0)
        for container in axes.containers:
            low, high = map(int, container.get_label().split("-"))
            for bar in container:
                name = DEFENDERS[round(bar.get_y() + bar.get_height() / 2)]
                count = small.tally.min_ks[name, patch][low : high + 1].sum()
                assert bar.get_width() == pytest.approx(100 * count / 300)
                assert bar.get_x() == pytest.approx(found[name])
                found[name] += bar.get_width()
        assert list(found.values()) == pytest.approx([100] * 5)


def test_accuracy_by_class_draws_every_class_best_first(small):
    [axes] = accuracy_by_class(small, defender="cbn", patch=2, k=5).axes
    counts, case = small.by_class, ("cbn", "square:2", 5)
    names = [tick.get_text() for tick in axes.get_yticklabels()]
    labels = [int(name.removeprefix("kind ")) for name in names]
    assert sorted(labels) == list(range(10))
    certified = lines(axes)["certified"].get_xdata()
    assert certified.tolist() == pytest.approx(
        (100 * counts.certified[case] / counts.images)[labels].tolist()
    )
    assert lines(axes)["clean"].get_xdata().tolist() == pytest.approx(
        (100 * counts.clean[case] / counts.images)[labels].tolist()
    )
    assert (np.diff(certified) <= 0).all()
    for label, segment in zip(labels, axes.collections[0].get_segments(), strict=True):
        expected = wilson(int(counts.certified[case][label]), int(counts.images[label]))
        assert segment[:, 0].tolist() == pytest.approx([100 * end for end in expected])


def test_of_many_classes_the_best_and_the_worst_are_shown(large):
    figure = accuracy_by_class(large)
    assert [axes.get_title("left") for axes in figure.axes] == ["15 best", "15 worst"]
    assert "The 15 best and the 15 worst of 1,000 classes." in figure.texts[1].get_text().replace("\n", " ")
    best, worst = (lines(axes)["certified"].get_xdata() for axes in figure.axes)
    counts = large.by_class
    share = np.sort(100 * counts.certified["costcert", "square:64", 1] / counts.images)
    assert best.tolist() == pytest.approx(share[:-16:-1].tolist())
    assert worst.tolist() == pytest.approx(share[14::-1].tolist())


def test_a_class_without_images_is_left_out():
    results = made_up(by_class=True, num_classes=12, images=5)
    [axes] = accuracy_by_class(results).axes
    assert len(axes.get_yticks()) == np.count_nonzero(results.by_class.images) < 12


def test_classes_need_their_counts(small):
    with pytest.raises(CostcertError, match="no counts by class: read them with the votes"):
        accuracy_by_class(made_up())
    with pytest.raises(CostcertError, match=r"no counts by class for cbn against square:4 at k = 3.*1, 5"):
        accuracy_by_class(small, defender="cbn", k=3)


def test_figures_are_those_that_say_something(drawn):
    assert list(drawn) == list(FIGURES)
    two = made_up(2)
    assert list(figures(two)) == ["accuracy-by-size", "min-k-histogram"]


ODD = {
    "one patch": {"patches": (4,)},
    "one defender": {"defenders": ("drs",)},
    "one of each": {"patches": (4,), "defenders": ("costcert",), "images": 1},
    "two classes": {"num_classes": 2},
    "all certified": {"min_k": 1, "num_classes": 1000},
    "nothing certified": {"min_k": 1000, "num_classes": 1000},
    "many sizes": {"patches": tuple(range(1, 30)), "num_classes": 200},
    "shapes": {"patches": ("shape:" + "/".join(["0110"] * 9), "rectangle:3x90", "3*rectangle:16x64")},
    "a plugin": {"defenders": ("costcert", "a-plugin-defender-with-a-long-name", "another")},
    "odd names": {"num_classes": 3, "class_names": ['$a$ <b> & "c" --> id="x"', "猫", "x" * 90]},
}


@pytest.mark.slow
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_odd_results_are_drawn_too(odd):
    results = made_up(by_class=True, **odd)
    for name, kind in FIGURES.items():
        root = ElementTree.fromstring(svg(kind.draw(results, width=COLUMN)))
        assert root.tag == f"{SVG}svg", name
        left, top, right, bottom = (float(number) for number in root.get("viewBox").split())
        assert (left, top, right) == (0, 0, pytest.approx(72 * COLUMN))
        for text in root.iter(f"{SVG}text"):
            # Rotated words have no place of their own to look at.
            if text.get("x") and not text.get("transform"):
                assert 0 <= float(text.get("x")) <= right, text.text
                assert 0 <= float(text.get("y")) <= bottom, text.text


def test_odd_names_are_written_as_they_are():
    names = ODD["odd names"]["class_names"]
    text = svg(accuracy_by_class(made_up(by_class=True, **ODD["odd names"])))
    found = [each.text for each in ElementTree.fromstring(text).iter(f"{SVG}text")]
    assert set(names[:2]) < set(found)
    assert "x" * 15 + "…" + "x" * 8 in found


def overlaps(boxes):
    return [
        (one, other)
        for place, one in enumerate(boxes)
        for other in boxes[place + 1 :]
        if one.width and other.width and one.overlaps(other)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("width", [COLUMN, PAGE], ids=["column", "page"])
@pytest.mark.parametrize("name", FIGURES)
def test_no_tick_label_touches_another_and_no_legend_covers_a_panel(name, width, large):
    figure = FIGURES[name].draw(large, width=width)
    svg(figure)
    renderer = figure.canvas.get_renderer() if hasattr(figure.canvas, "get_renderer") else None
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            shown = [label for label in axis.get_ticklabels() if label.get_text() and label.get_visible()]
            assert not overlaps([label.get_window_extent(renderer) for label in shown])
        for legend in figure.legends:
            assert not legend.get_window_extent(renderer).overlaps(axes.get_window_extent(renderer))


@pytest.mark.slow
def test_a_large_run_makes_small_files(large):
    for name, figure in drawn_figures(large).items():
        assert 2_000 < len(svg(figure).encode()) < 150_000, name


def test_svg_has_a_title_and_a_description_and_no_date(drawn):
    for name, figure in drawn.items():
        root = ElementTree.fromstring(svg(figure))
        assert root.tag == f"{SVG}svg", name
        title, note = (text.get_text().replace("\n", " ") for text in figure.texts[:2])
        assert (root.findtext(f"{SVG}title"), title_and_note(figure)) == (title, (title, note))
        assert [each.text for each in root.iter(f"{DC}description")] == [note]
        assert not list(root.iter(f"{DC}date"))


def test_svg_texts_are_texts_in_any_font(drawn):
    text = svg(drawn["accuracy-by-size"])
    found = [each.text for each in ElementTree.fromstring(text).iter(f"{SVG}text")]
    assert {"Top 5", "PatchGuard", "PG♠/CBN", "Side of the square patch in px"} <= set(found)
    # Where the first font is missing, the next one is at least without serifs.
    assert set(re.findall(r"'DejaVu Sans'[^;\"]*", text)) == {"'DejaVu Sans', sans-serif"}


@pytest.mark.slow
def test_same_results_same_bytes_in_another_process(tmp_path, small):
    script = (
        "import sys; sys.path[:0] = sys.argv[1].split(','); import test_figures as t; "
        "t.write_figures(t.made_up(by_class=True, class_names=[f'kind {label}' for label in range(10)]), "
        "sys.argv[2])"
    )
    subprocess.run(
        [sys.executable, "-c", script, MODULES, str(tmp_path / "other")],
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "77", "SOURCE_DATE_EPOCH": ""},
        timeout=HANGS,
    )
    paths = write_figures(small, tmp_path / "here")
    assert [path.name for path in paths] == [f"{name}.{kind}" for name in FIGURES for kind in ("svg", "pdf")]
    for path in paths:
        assert path.read_bytes() == (tmp_path / "other" / path.name).read_bytes(), path.name


def test_the_users_own_settings_neither_matter_nor_change(small):
    import matplotlib

    plain = svg(accuracy_by_size(small))
    with matplotlib.rc_context({"font.size": 20, "axes.grid": False, "svg.fonttype": "path"}):
        assert svg(accuracy_by_size(small)) == plain
        assert matplotlib.rcParams["font.size"] == 20


@pytest.mark.slow
def test_pyplot_is_never_imported():
    script = (
        "import sys; sys.path[:0] = sys.argv[1].split(','); import test_figures as t; "
        "[t.svg(each) for each in t.drawn_figures(t.made_up(by_class=True)).values()]; "
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script, MODULES], check=True, timeout=HANGS)


def test_pdf_embeds_truetype_and_has_no_date(tmp_path):
    results = made_up(2, patches=(4,))
    for path in write_figures(results, tmp_path, ["pdf"]):
        content = path.read_bytes()
        assert content.startswith(b"%PDF")
        assert b"/FontFile2" in content
        assert b"/Type3" not in content
        assert b"CreationDate" not in content
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def test_unknown_formats_are_refused():
    with pytest.raises(CostcertError, match=r"got the figure format 'gif': choose from svg, pdf, png"):
        check_formats(["svg", "gif"])


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch, small, tmp_path):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for kind in FIGURES.values():
        with pytest.raises(
            CostcertError, match=r"^figures need matplotlib: pip install 'costcert\[report\]'$"
        ):
            kind.draw(small)
    with pytest.raises(CostcertError, match=r"costcert\[report\]"):
        as_files(figures(small), tmp_path, ["svg"])


@pytest.mark.slow
def test_of_many_sizes_as_many_as_there_is_room_for():
    figure = accuracy_by_k(made_up(patches=tuple(range(10, 31, 2)), num_classes=3))
    shown = list(map(plain, titles(figure)))
    assert (len(shown), shown[0][:13], shown[-1][:13]) == (8, "10 × 10 px (0", "30 × 30 px (1")
    assert "8 of 11 patches are shown." in figure.texts[1].get_text().replace("\n", " ")


def test_every_defender_looks_its_own_way_in_every_figure():
    names = (*DEFENDERS, "plugin", "another plugin")
    found = looks(names)
    for part in ("colour", "marker", "dash"):
        assert len({getattr(look, part) for look in found.values()}) == len(names)
    assert looks(("drs", "plugin"))["drs"] == found["drs"]
    assert defender_title("cbn") == "PG♠/CBN"
    assert defender_title("plugin") == "plugin"


def signs(name, seed=0, **more):
    """A made-up run on images like those that the paper certifies, against patches of the same share."""
    return run(
        name, patches=("square:5", "square:2"), classes=43, image_size=(32, 32), seed=seed, images=90, **more
    )


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_the_comparison_draws_the_numbers_of_every_run_and_of_the_paper():
    runs, ks = [signs("one"), signs("two", seed=1)], [1, 3, 5]
    paper = published("gtsrb")
    figure = comparison(runs, ks, paper)
    assert list(map(plain, titles(figure))) == ["2 × 2 px (0.4 %)", "5 × 5 px (2.4 %)"]
    for axes, patch, spelled in zip(figure.axes, ("square:2", "square:5"), ("0.4 %", "2.4 %"), strict=True):
        expected = {}
        for metric in ("clean", "certified"):
            for each in runs:
                rows = each.accuracy(ks).set_index(["defender", "patch"]).loc[("costcert", patch)]
                expected[f"{each.name} CostCert {metric}"] = list(100 * rows[metric])
            for each in paper.defenders:
                expected[f"Zhou et al., Table 2 {each.name} {metric}"] = [
                    100 * paper.shares[each.name, metric, spelled, k] for k in ks
                ]
        found = lines(axes)
        assert set(found) == set(expected)
        for label, shares in expected.items():
            assert found[label].get_xdata().tolist() == ks
            assert found[label].get_ydata().tolist() == pytest.approx(shares)
            is_printed = label.startswith("Zhou")
            assert (found[label].get_linestyle() == "--") == is_printed
            assert (found[label].get_markerfacecolor() == "white") == is_printed
        looks_of = [(found[label].get_color(), found[label].get_marker()) for label in found]
        assert len(set(looks_of)) == len(looks_of)
    assert {
        "one: CostCert, 32 passes",
        "two: CostCert, 32 passes",
        "Zhou et al., Table 2: CC, 224 passes",
        "Zhou et al., Table 2: PG♠, 224 passes",
        "certified",
        "clean",
    } < set(legend(figure))
    assert "90 images of sample (test)." in figure.texts[1].get_text().replace("\n", " ")
    assert svg(figure) == svg(comparison(runs, ks, paper))


def test_the_comparison_shows_the_requested_defenders():
    runs = [signs("one"), signs("two", defenders=("cbn", "drs"))]
    shown = legend(comparison(runs, defenders=["patchguard", "cbn"], published=published("gtsrb")))
    assert {each.rpartition(",")[0] for each in shown if ":" in each} == {
        "one: PatchGuard",
        "two: PG♠/CBN",
        "Zhou et al., Table 2: PG",
        "Zhou et al., Table 2: PG♠",
    }
    # By default CostCert, or the one that certifies most.
    table = runs[1].accuracy(range(1, 6)).groupby("defender")["certified"].sum()
    best = defender_title(table.idxmax())
    assert [each for each in legend(comparison(runs)) if ":" in each] == [
        "one: CostCert, 32 passes",
        f"two: {best}, 32 passes",
    ]
    with pytest.raises(CostcertError, match=r"these runs have no defender 'cnb'.*cbn"):
        comparison(runs, defenders=["cnb"])


def test_what_was_not_measured_is_not_drawn():
    runs = [signs("one"), run("other", patches=("square:2",), classes=43, image_size=(32, 32), images=90)]
    paper = published("gtsrb")
    first, second = comparison(runs, range(1, 8), paper).axes
    assert "other CostCert certified" in lines(first)
    assert "other CostCert certified" not in lines(second)
    # The paper ends at 5.
    printed = lines(first)["Zhou et al., Table 2 CC certified"].get_ydata()
    assert np.isnan(printed).tolist() == [False] * 5 + [True] * 2
    with pytest.raises(CostcertError, match="allow mixed data"):
        comparison([signs("one"), run("two")])
    words = comparison([signs("one"), run("two")], mixed=True).texts[1].get_text().replace("\n", " ")
    assert "Different datasets: the numbers are not comparable." in words


@pytest.mark.parametrize("width", [COLUMN, PAGE], ids=["column", "page"])
def test_a_comparison_of_many_long_names_fits(width):
    runs = [
        signs(f"a run of a rather long name, which says it all, with seed {seed}", seed) for seed in range(9)
    ]
    figure = comparison(runs, published=published("gtsrb"), width=width)
    svg(figure)
    [box] = [each.get_window_extent() for each in figure.legends]
    assert box.x1 <= figure.bbox.x1 + 1
    assert len(set(legend(figure))) == 9 + 3 + 2
    for axes in figure.axes:
        assert not box.overlaps(axes.get_window_extent())
        assert not overlaps([label.get_window_extent() for label in axes.xaxis.get_ticklabels()])
    drawn = lines(figure.axes[0])
    pairs = {(str(each.get_color()), each.get_marker()) for each in drawn.values()}
    assert len(pairs) == len(drawn)
