"""Stickers on originals on the page of `costcert explore`: the arithmetic, and what the page says."""

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the page needs costcert[explore]")
pytest.importorskip("uvicorn", reason="the page needs costcert[explore]")
pytest.importorskip("PIL", reason="pictures need Pillow")

import costcert as cc
from costcert.datasets.arrays import ArrayDataset
from costcert.explorer.image import Terms, ballots_json
from costcert.explorer.pictures import Pictures
from costcert.explorer.session import Session
from costcert.geometry.footprints import footprint
from costcert.geometry.preparation import FITS, SUPPORTS
from explorer_page import settled, slide, state, until
from mixed_sizes import pictures
from resized import Resized
from served import picture, served

NAMES = ("shoe", "bag", "coat", "dress")
SIZES = [(5, 6)] * 6 + [(14, 20)] * 6


@pytest.fixture(scope="module")
def model():
    return Resized(class_names=NAMES)


@pytest.fixture(scope="module")
def votes(model):
    """Of pictures of two sizes, most of whose strips agree."""
    cast = cc.vote(model, (pictures(SIZES), [0] * 12), "columns:3")
    rng = np.random.default_rng(1)
    truth = rng.integers(0, 4, 12)
    share = np.linspace(0.4, 1, 12)[rng.permutation(12), None]
    ballots = np.where(rng.random((12, 12)) < share, truth[:, None], rng.integers(0, 4, (12, 12)))
    return cast.replace(ballots=ballots, truth=truth, margins=None)


@pytest.fixture(scope="module")
def session(votes, model):
    shown = ArrayDataset("noise", np.zeros((12, 9, 12), np.uint8), votes.truth, ids=votes.image_ids)
    return Session(
        votes,
        name="noise",
        certificates=cc.certify(votes, ["original:2", "original:1"]),
        pictures=Pictures(shown, model.prepare),
    )


@pytest.fixture(scope="module")
def address(session, model):
    with served(session, deployed=cc.Deployed(model, "columns:3")) as where:
        yield where


EVERYWHERE = """async (inputs) => {
    const m = await import("/page/arithmetic.js"), {onOriginal} = await import("/page/reach.js");
    return inputs.map(({votes, about, tau, geometry, found, defenders}) => {
        const election = m.makeElection(votes, about, {tau});
        const reach = onOriginal(found);
        const places = m.distinctPlaces(geometry, reach);
        const windows = m.maskWindows(geometry, reach, places);
        const worst = {}, sets = {};
        for (let top = 0; top < found.rows.length; top++) {
            for (let left = 0; left < found.columns.length; left++) {
                const isTouched = m.touched(geometry, reach, {top, left});
                sets[`${top},${left}`] = [...isTouched.keys()].filter((i) => isTouched[i]);
                const here = m.positions(election, isTouched, votes.truth,
                    {budget: reach.budget, windows, defenders, masks: geometry.masks});
                for (const name of defenders) worst[name] = Math.max(worst[name] || 0, here[name]);
            }
        }
        const rows = geometry.masks !== null;
        const {position} = m.worstPlace(election, geometry, reach, votes.truth, places, rows);
        return {worst, sets, position};
    });
}"""


def worlds():
    """Small votes of strips, blocks and masks, of originals that were resized and cropped in every way."""
    rng = np.random.default_rng(4)
    families = (
        ("columns:3", (5, 9)),
        ("columns:4/stride=3", (4, 11)),
        ("rows:2", (8, 3)),
        ("blocks:3/stride=2", (6, 7)),
        ("columns:3+rows:2/stride=2", (6, 7)),
        ("masks:2/patch=3", (7, 6)),
        ("masks:2/patch=2x4", (6, 9)),
    )
    ways = [(fit, interpolation) for fit in FITS for interpolation in SUPPORTS]
    turn = 0
    while turn < 84:
        ablation, image_size = families[turn % len(families)]
        fit, interpolation = ways[int(rng.integers(len(ways)))]
        original = tuple(int(side) for side in rng.integers(2, 17, 2))
        classes = int(rng.integers(2, 6))
        mutants = cc.parse_ablation(ablation).count(image_size)
        truth = int(rng.integers(classes))
        ballots = np.where(rng.random(mutants) < 0.8, truth, rng.integers(0, classes, mutants))
        preprocessing = {
            "image_size": list(image_size),
            "crop_pct": float(rng.choice([0.7, 0.875, 1.0])),
            "crop_mode": fit,
            "interpolation": interpolation,
        }
        votes = cc.Votes(
            [ballots],
            [truth],
            num_classes=classes,
            ablation=ablation,
            image_size=image_size,
            originals=[original],
            provenance={"model": {"preprocessing": preprocessing}},
        )
        height, width = (int(rng.integers(1, min(3, side) + 1)) for side in original)
        patch = cc.Original(cc.Rectangle(height, width))
        if "masks" in ablation:
            try:
                cc.certify(votes, patch, "patchcleanser")
            except cc.CostcertError:
                # Masks that do not cover this footprint: another one.
                continue
        turn += 1
        yield votes, patch


@pytest.mark.slow
def test_its_arithmetic_equals_that_of_the_library(visit, address):
    page = visit(address)
    inputs, expected = [], []
    for votes, patch in worlds():
        session = Session(votes)
        about = session.summary()
        found = session.footprint(str(patch), tuple(votes.originals[0].tolist()))
        certs = cc.certify(votes, patch)
        height, width = votes.image_size
        inputs.append(
            {
                "votes": ballots_json(votes, Terms()),
                "about": {"num_classes": votes.num_classes, "ties": "against"},
                "tau": 0,
                "geometry": {
                    "height": height,
                    "width": width,
                    "parts": about["parts"],
                    "masks": about["masks"],
                    "mutants": votes.num_mutants,
                },
                "found": found,
                "defenders": certs.defenders,
            }
        )
        expected.append({name: int(certs.min_k(name, patch)[0]) for name in certs.defenders})
    answers = page.evaluate(EVERYWHERE, inputs)
    some = 0
    for (votes, patch), wanted, given, found in zip(worlds(), expected, inputs, answers, strict=True):
        assert found["worst"] == wanted
        assert found["position"] == wanted.get("patchcleanser", wanted.get("costcert"))
        reach = footprint(patch, tuple(votes.originals[0].tolist()), Resized.preparation_of(votes))
        kept = [region.pixels(votes.image_size) for region in votes.ablation.regions(votes.image_size)]
        assert len(given["found"]["rows"]) * len(given["found"]["columns"]) == len(found["sets"])
        for place, mutants in found["sets"].items():
            pixels = reach.pixels(*map(int, place.split(",")))
            assert mutants == [i for i, each in enumerate(kept) if (each & pixels).any()]
            some += bool(mutants)
    assert some


def text_of(page, selector):
    return page.locator(selector).inner_text()


def shown(page):
    """{defender: (rank, here, anywhere)} of the image on the page; no promise is the last place."""
    table = {}
    for row in page.locator("#defenders tbody tr").all():
        cells = row.locator("td").all_inner_texts()
        table[row.get_attribute("data-defender")] = [
            4 if "no promise" in cell else int("".join(filter(str.isdigit, cell))) for cell in cells
        ]
    return table


def held(votes, image, patch, place):
    """The mutants that this patch on the original touches, by pixels."""
    row = votes.image_ids.tolist().index(image)
    reach = footprint(
        cc.parse_patch(patch), tuple(votes.originals[row].tolist()), Resized.preparation_of(votes)
    )
    pixels = reach.pixels(*place)
    regions = votes.ablation.regions(votes.image_size)
    return sum(bool((region.pixels(votes.image_size) & pixels).any()) for region in regions)


def loaded(page, patch):
    until(page, f"costcert.state.table && costcert.state.table.patch === '{patch}' && costcert.state.reach")
    settled(page)


def shows(page, image):
    until(page, f"costcert.state.image === '{image}' && costcert.state.anywhere && costcert.state.reach")


def place_of(page):
    return state(page, "top"), state(page, "left")


def test_a_run_certified_on_originals_is_shown(visit, address, votes):
    page = visit(address)
    assert state(page, "on") == page.input_value("#on") == "original"
    assert state(page, "about.original.sides") == [1, 2]
    slide(page, "size", 2)
    loaded(page, "original:2")
    certs = cc.certify(votes, "original:2")
    assert state(page, "table.defenders.costcert.min_k") == certs.min_k("costcert", "original:2").tolist()
    for number in (0, 8):
        page.locator("#cards button").nth(number).click()
        image = votes.image_ids[number]
        shows(page, image)
        height, width = votes.originals[number]
        assert f"2 × 2 px on the {height} × {width} picture; at the model’s input it changes" in text_of(
            page, "#size-shown"
        )
        page.click("#worst")
        page.evaluate("costcert.draw()")
        table = shown(page)
        for name in certs.defenders:
            found = certs.rank(name, "original:2")[number], certs.min_k(name, "original:2")[number]
            assert (table[name][0], table[name][2]) == found
            assert table[name][1] <= table[name][2]
        assert table["costcert"][1] == table["costcert"][2]
        assert f"holds {held(votes, image, 'original:2', place_of(page))} of 12 votes" in text_of(
            page, "#here"
        )
        assert "2 × 2 pixel sticker on the original picture, anywhere" in text_of(page, "#anywhere") or (
            "No certificate" in text_of(page, "#anywhere")
            or "Nothing is promised" in text_of(page, "#anywhere")
        )


def test_the_sticker_is_moved_in_pixels_of_the_original(visit, address, votes):
    page = visit(address)
    page.locator("#cards button").nth(8).click()
    shows(page, 8)
    sticker = page.locator("#sticker")
    sticker.focus()
    top, left = place_of(page)
    for key, step in (("ArrowRight", (0, 1)), ("ArrowDown", (1, 0)), ("Shift+ArrowLeft", (0, -5))):
        page.keyboard.press(key)
        top, left = top + step[0], left + step[1]
        assert place_of(page) == (top, left)
    for _ in range(30):
        page.keyboard.press("ArrowLeft")
    assert place_of(page) == (top, 0)
    page.keyboard.press("Home")
    page.evaluate("costcert.draw()")
    assert shown(page)["costcert"][1] == shown(page)["costcert"][2]
    # Dragged by the mouse: the corner is where the original's pixel is drawn.
    box, side = page.locator("#stage").bounding_box(), state(page, "width")
    grip = sticker.bounding_box()
    page.mouse.move(grip["x"] + grip["width"] / 2, grip["y"] + grip["height"] / 2)
    page.mouse.down()
    x, y = box["x"] + (13 + side / 2) / 20 * box["width"], box["y"] + (9 + side / 2) / 14 * box["height"]
    page.mouse.move(x, y, steps=4)
    page.mouse.up()
    until(page, "costcert.state.top === 9 && costcert.state.left === 13")
    page.evaluate("costcert.draw()")
    moved = sticker.bounding_box()
    assert moved["x"] - box["x"] == pytest.approx(13 / 20 * box["width"], abs=2)
    label = sticker.get_attribute("aria-label")
    assert label.startswith(f"{side} by {side} pixels (height by width) of the 14 by 20 picture, at row 9")
    assert "at the model’s input it changes" in label
    # The footprint is drawn where the input changes.
    reach = footprint(cc.Original(cc.Square(side)), (14, 20), Resized.preparation_of(votes))
    (rectangle,) = reach.rectangles(9, 13)
    (drawn,) = [each.bounding_box() for each in page.locator("#footprint div").all()]
    assert drawn["x"] - box["x"] == pytest.approx(rectangle.left / 12 * box["width"], abs=2)
    assert drawn["width"] == pytest.approx(rectangle.width / 12 * box["width"], abs=2)
    assert drawn["height"] == pytest.approx(rectangle.height / 9 * box["height"], abs=2)


@pytest.mark.slow
def test_other_sizes_labels_and_the_input(visit, address, votes):
    page = visit(address)
    page.uncheck("#square")
    slide(page, "height", 1)
    slide(page, "size", 4)
    until(
        page, "costcert.state.table && costcert.state.table.patch === 'original:1x4' && costcert.state.reach"
    )
    settled(page)
    row = votes.image_ids.tolist().index(state(page, "image"))
    for label in range(4):
        page.select_option("#label", str(label))
        until(page, f"costcert.state.label === {label} && costcert.state.anywhere")
        certs = cc.certify(votes.take([row]).replace(truth=[label]), "original:1x4")
        page.evaluate("costcert.draw()")
        assert {name: found[2] for name, found in shown(page).items()} == {
            name: certs.min_k(name, "original:1x4")[0] for name in certs.defenders
        }
    page.select_option("#on", "input")
    until(page, "costcert.state.table && costcert.state.table.patch.startsWith('square:')")
    settled(page)
    side = state(page, "width")
    assert page.is_checked("#square")
    assert "% of the picture" in text_of(page, "#size-shown")
    assert page.locator("#footprint div").count() == 0
    certs = cc.certify(votes.replace(truth=np.full(12, 3)), side)
    page.evaluate("costcert.draw()")
    assert {name: found[2] for name, found in shown(page).items()} == {
        name: certs.min_k(name, side)[row] for name in certs.defenders
    }
    page.select_option("#on", "original")
    loaded(page, "original:1")
    assert int(page.get_attribute("#size", "max")) == 5


@pytest.mark.slow
def test_an_uploaded_picture_has_its_own_size(visit, address, model):
    page = visit(address, complaints=["status of 422"])
    pixels, content = picture(size=(17, 11))
    page.set_input_files("#upload", files=[{"name": "a.png", "mimeType": "image/png", "buffer": content}])
    page.wait_for_selector("#upload-answer button")
    until(page, "costcert.state.upload && costcert.state.reach && costcert.state.anywhere")
    assert "on the 11 × 17 picture" in text_of(page, "#size-shown")
    label, side = state(page, "label"), state(page, "width")
    certs = cc.Deployed(model, "columns:3").certify(pixels, [label], f"original:{side}")
    page.evaluate("costcert.draw()")
    assert shown(page)["costcert"][2] == certs.min_k("costcert", f"original:{side}")[0]
    slide(page, "size", 3)
    loaded(page, "original:3")
    # A picture that is smaller than the sticker is refused, and the last one stays.
    small = picture(size=(2, 2))[1]
    page.set_input_files("#upload", files=[{"name": "b.png", "mimeType": "image/png", "buffer": small}])
    page.wait_for_selector("#trouble:not([hidden])")
    assert "does not fit an original of 2x2 pixels" in text_of(page, "#trouble-text")
    assert "on the 11 × 17 picture" in text_of(page, "#size-shown")


@pytest.mark.slow
def test_unread_images_are_refused_in_words(visit, votes):
    unread = np.arange(12) == 3
    some = votes.replace(unread=unread, originals=np.where(unread[:, None], 0, votes.originals))
    with served(Session(some, certificates=cc.certify(some, "original:2"))) as where:
        page = visit(where)
        image = state(page, "image")
        page.locator("#cards button").nth(3).click()
        page.wait_for_selector("#trouble:not([hidden])")
        assert "This picture could not be read when the votes were cast" in text_of(page, "#trouble-text")
        assert state(page, "image") == image


@pytest.mark.slow
def test_masks_hide_stickers_on_originals(visit):
    model = Resized(interpolation="nearest", class_names=NAMES)
    votes = cc.vote(model, (pictures(SIZES), [0] * 12), "masks:3/patch=3")
    rng = np.random.default_rng(2)
    truth = rng.integers(0, 4, 12)
    flipped = rng.random(votes.ballots.shape) < 0.05
    votes = votes.replace(
        ballots=np.where(flipped, (truth[:, None] + 1) % 4, truth[:, None]), truth=truth, margins=None
    )
    certs = cc.certify(votes, "original:1", "patchcleanser")
    with served(Session(votes, certificates=certs)) as where:
        page = visit(where)
        for number in (0, 9):
            page.locator("#cards button").nth(number).click()
            until(
                page,
                f"costcert.state.image === '{number}' && costcert.state.anywhere && costcert.state.reach",
            )
            page.click("#worst")
            page.evaluate("costcert.draw()")
            table = shown(page)["patchcleanser"]
            assert table[1] == table[2] == certs.min_k("patchcleanser", "original:1")[number]
            hidden = 45 - held(votes, str(number), "original:1", place_of(page))
            assert f"{hidden} of 45 copies hide all of it" in text_of(page, "#spent")
        assert int(page.get_attribute("#size", "max")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits(visit, address, width):
    page = visit(address, width=width)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.slow
def test_the_page_keeps_stickers_where_they_change_something(visit):
    model = Resized(fit="center", part=0.75)
    votes = cc.vote(model, (pictures([(30, 60)] * 2), [0, 1]), "columns:3")
    with served(Session(votes, certificates=cc.certify(votes, "original:1"))) as where:
        page = visit(where)
        page.focus("#sticker")
        for key in ("ArrowLeft", "ArrowUp"):
            for _ in range(60):
                page.keyboard.press(key)
        page.evaluate("costcert.draw()")
        assert min(place_of(page)) > 0
        assert "changes nothing" not in text_of(page, "#size-shown")
        assert page.locator("#footprint div").count() == 1
