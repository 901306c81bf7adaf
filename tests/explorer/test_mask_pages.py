"""Votes of masks on the page of `costcert explore`: the triangle, and the arithmetic of the library."""

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the page needs costcert[explore]")
pytest.importorskip("uvicorn", reason="the page needs costcert[explore]")
pytest.importorskip("PIL", reason="pictures need Pillow")

import costcert as cc
from costcert.explorer.image import Terms, ballots_json
from costcert.explorer.session import Session
from costcert.geometry.touch import touched
from explorer_page import settled, slide, state
from served import served

NAMES = ("shoe", "bag", "coat", "dress", "shirt")


def mask_votes(images=12, per_axis=3, patch=6, image_size=(28, 28), soft=False, seed=0):
    """Ballots for the truth, but for some masks that often turn them to one rival."""
    rng = np.random.default_rng(seed)
    ablation = cc.Masks(per_axis, patch=patch)
    truth = rng.integers(0, 5, images)
    ballots = np.repeat(truth[:, None], ablation.count(image_size), axis=1)
    for image, rows in enumerate(rng.random((images, ablation.num_masks)) < 0.3 * rng.random((images, 1))):
        for row in np.flatnonzero(rows):
            turned = ablation.table()[row][rng.random(ablation.num_masks) < 0.7]
            ballots[image, turned] = (truth[image] + 1 + rng.integers(2)) % 5
    options = {"num_classes": 5, "ablation": ablation, "image_size": image_size, "class_names": NAMES}
    if not soft:
        return cc.Votes(ballots, truth, **options)
    labels = np.stack([ballots, (ballots + 1) % 5, (ballots + 3) % 5], axis=2)
    units = np.stack(
        [rng.integers(500, 800, ballots.shape), *rng.integers(0, 100, (2, *ballots.shape))], axis=2
    )
    return cc.Votes.soft(labels, units, truth, cap=1000, ballots=ballots, **options)


EVERYWHERE = """async (inputs) => {
    const m = await import("/page/arithmetic.js"), {onInput} = await import("/page/reach.js");
    return inputs.map(({votes, about, tau, geometry, height, width}) => {
        const election = m.makeElection(votes, about, {tau});
        const reach = onInput(geometry, {height, width});
        const places = m.distinctPlaces(geometry, reach);
        const sets = {};
        let worst = 0;
        for (let top = 0; top + height <= geometry.height; top++) {
            for (let left = 0; left + width <= geometry.width; left++) {
                const isTouched = m.touched(geometry, reach, {top, left});
                sets[`${top},${left}`] = [...isTouched.keys()].filter((i) => isTouched[i]);
                const found = m.positions(election, isTouched, votes.truth,
                    {budget: 0, windows: null, defenders: ["patchcleanser"], masks: geometry.masks});
                worst = Math.max(worst, found.patchcleanser);
            }
        }
        const {position} = m.worstPlace(election, geometry, reach, votes.truth, places, true);
        return {worst, position, sets};
    });
}"""


def worlds():
    """Small votes of masks: hard and soft, not square, ballots not cast, distrusted or off by tau."""
    rng = np.random.default_rng(3)
    shapes = ((2, 2, (7, 6)), (2, (1, 3), (5, 9)), (3, (3, 2), (8, 7)), (1, 2, (5, 5)))
    for turn in range(48):
        per_axis, patch, image_size = shapes[turn % len(shapes)]
        if per_axis == 1:
            per_axis, patch, image_size = 3, 1, (6, 5)
        votes = mask_votes(1, per_axis, patch, image_size, soft=turn % 2 == 1, seed=turn)
        if turn % 3 == 0:
            votes = votes.replace(known=rng.random((1, votes.num_mutants)) < 0.97)
        tau = int(rng.integers(0, 60)) if votes.is_soft and turn % 4 == 1 else 0
        height, width = votes.ablation.sides
        smaller = cc.Rectangle(int(rng.integers(1, height + 1)), int(rng.integers(1, width + 1)))
        yield votes, Terms(tau=tau), smaller


@pytest.fixture(scope="module")
def votes():
    return mask_votes(soft=True, seed=8)


@pytest.fixture(scope="module")
def address(votes):
    with served(Session(votes, name="masks")) as where:
        yield where


def test_its_arithmetic_equals_that_of_the_library(visit, address):
    page = visit(address)
    inputs, expected = [], []
    for votes, terms, patch in worlds():
        about = Session(votes, terms=terms).summary()
        height, width = votes.image_size
        inputs.append(
            {
                "votes": ballots_json(votes, terms),
                "about": {"num_classes": votes.num_classes, "ties": terms.ties},
                "tau": terms.tau,
                "geometry": {
                    "height": height,
                    "width": width,
                    "parts": about["parts"],
                    "masks": about["masks"],
                    "mutants": votes.num_mutants,
                },
                "height": patch.height,
                "width": patch.width,
            }
        )
        certs = cc.certify(votes, patch, "patchcleanser", tau=terms.tau)
        expected.append((votes, patch, int(certs.min_k("patchcleanser", patch)[0])))
    answers = page.evaluate(EVERYWHERE, inputs)
    for (votes, patch, min_k), found in zip(expected, answers, strict=True):
        assert found["worst"] == found["position"] == min_k
        kept = [region.pixels(votes.image_size) for region in votes.ablation.regions(votes.image_size)]
        for place, mutants in found["sets"].items():
            top, left = map(int, place.split(","))
            assert mutants == [
                i
                for i, pixels in enumerate(kept)
                if pixels[top : top + patch.height, left : left + patch.width].any()
            ]
    assert len({min_k for _, _, min_k in expected}) > 2


def test_the_page_shows_rows_and_scores(visit, address, votes):
    page = visit(address)
    page.select_option("#view", "soft")
    settled(page)
    assert page.locator("#defender option").all_inner_texts() == ["PatchCleanser"]
    assert "9 masks" in page.locator("#lead").inner_text()
    assert "pair of masks" in page.locator("#strips-caption").inner_text()
    assert page.locator("#strips canvas").count() == 1
    page.click("#worst")
    certs = cc.certify(votes, cc.Square(state(page, "width")), "patchcleanser")
    row = list(votes.image_ids).index(state(page, "image"))
    min_k = int(certs.min_k("patchcleanser", certs.patches[0])[row])
    here, anywhere = page.locator("#defenders tbody td").all_inner_texts()[1:]
    assert here == anywhere
    assert anywhere.endswith(f"top {min_k}" if min_k < 5 else "no promise")
    assert page.locator("#masks .decides, #masks .covers").count() >= 1
    assert "of 45 copies hide all of it" in page.locator("#spent").inner_text()
    assert not page.locator("#budget-bar").is_visible()


def test_a_sticker_is_no_larger_than_what_masks_cover(visit, address, votes):
    page = visit(address)
    assert int(page.get_attribute("#size", "max")) == 6
    assert max(state(page, "about.sides")) == 6
    slide(page, "size", 6)
    settled(page)
    assert page.locator("#trouble").is_hidden()
    page.uncheck("#square")
    assert int(page.get_attribute("#height", "max")) == int(page.get_attribute("#size", "max")) == 6


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_triangle_is_drawn(visit, address, width, scheme):
    """The cells of one label have its colour; nothing is wider than the page."""
    page = visit(address, width=width, scheme=scheme, complaints=["willReadFrequently"])
    colours = page.evaluate(
        """() => { const c = document.querySelector("#strips canvas"), pen = c.getContext("2d");
            const cell = c.width / 9;
            const at = (i, j) => [...pen.getImageData((j + 0.25) * cell, (i + 0.8) * cell, 1, 1).data];
            return {above: at(0, 8), below: at(8, 0)}; }"""
    )
    assert colours["above"][3] > 0
    assert colours["below"] == [0, 0, 0, 0]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_votes_of_masks_certified_by_counting_are_shown_too(visit):
    votes = mask_votes(4)
    certs = cc.certify(votes, "square:4", ["costcert", "patchcleanser"])
    with served(Session(votes, name="masks", certificates=certs)) as where:
        page = visit(where)
        page.select_option("#defender", "costcert")
        assert page.locator("#budget-title").inner_text() == "How the attacker spends"
        row = list(votes.image_ids).index(state(page, "image"))
        page.click("#worst")
        shown = page.locator("#defenders tr.chosen td").all_inner_texts()
        min_k = int(certs.min_k("costcert", "square:4")[row])
        assert shown[1] == shown[2]
        assert shown[1].endswith(f"top {min_k}" if min_k < 5 else "no promise")


def test_the_service_finds_the_worst_place(votes):
    from costcert.explorer.image import LabelledImage, certify_image

    for row in range(4):
        one = votes.take([row])
        (answer,) = certify_image(LabelledImage(one), ["square:4"], attack=True)
        assert answer["attack"]["position"] == answer["defenders"]["patchcleanser"]["min_k"]
        assert answer["budget"] == touched(votes.ablation, cc.Square(4), (28, 28)).delta
