"""Reports of votes of masks: what stands at the worst place, the triangle, and the page."""

import re

import numpy as np
import pytest

import costcert as cc
import naive
from command_line import invoke
from costcert.errors import VotesError
from costcert.geometry.touch import touched
from costcert.reports import drawing
from costcert.reports.examples import Example
from costcert.reports.standing import worst_standing
from costcert.store.sources import write_certificates, write_votes


def random_votes(seed, images=1, *, soft=False, per_axis=2, patch=2, image_size=(7, 6)):
    rng = np.random.default_rng(seed)
    masks = cc.Masks(per_axis, patch=patch)
    truth = rng.integers(0, 4, images)
    shape = (images, masks.count(image_size))
    ballots = np.where(rng.random(shape) < 0.85, truth[:, None], rng.integers(0, 4, shape))
    options = {"num_classes": 4, "ablation": masks, "image_size": image_size}
    if not soft:
        return cc.Votes(ballots, truth, **options)
    labels = np.stack([ballots, rng.integers(0, 4, shape)], axis=2)
    units = np.stack([rng.integers(3, 7, shape), rng.integers(0, 4, shape)], axis=2)
    return cc.Votes.soft(labels, units, truth, cap=10, ballots=ballots, **options)


def touched_at(votes, top, left, patch):
    kept = [region.pixels(votes.image_size) for region in votes.ablation.regions(votes.image_size)]
    hit = [pixels[top : top + patch.height, left : left + patch.width].any() for pixels in kept]
    return set(np.flatnonzero(hit).tolist())


def ballots_of(votes):
    """One dictionary per mutant, as the slow twins read them."""
    if not votes.is_soft:
        return [{label: 1} for label in votes.ballots[0].tolist()]
    found = []
    for labels, units in zip(votes.labels[0].tolist(), votes.units[0].tolist(), strict=True):
        ballot = {}
        for label, amount in zip(labels, units, strict=True):
            ballot[label] = ballot.get(label, 0) + amount
        found.append(ballot)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_what_stands_follows_from_the_definition(seed):
    votes, patch = random_votes(seed, soft=seed % 2 == 1), cc.Rectangle(1 + seed % 2, 2)
    stand = worst_standing(votes, 0, patch)
    ballots, truth = ballots_of(votes), int(votes.truth[0])
    rows = naive.rows_of(votes.ablation.num_masks)
    ((top, left),) = stand.places
    attacked = touched_at(votes, top, left, patch)
    assert set(stand.touched.tolist()) == attacked
    safe = [number for number, row in enumerate(rows) if not attacked.intersection(row)]
    assert stand.safe.tolist() == safe

    def least(row, label, counted):
        return min([ballots[m].get(label, 0) for m in rows[row] if m in counted] + [votes.cap])

    everyone = set(range(votes.num_mutants))
    assert stand.least == max(least(row, truth, everyone) for row in safe)
    assert least(stand.least_row, truth, everyone) == stand.least
    assert stand.scores.tolist() == naive.max_min(ballots, rows, votes.num_classes)
    for label in range(votes.num_classes):
        reach = [least(row, label, everyone - attacked) for row in range(len(rows))]
        assert stand.most[label] == max(reach) == reach[stand.most_rows[label]]
    assert stand.standing.tolist() == [row for row in range(len(rows)) if least(row, truth, everyone) > 0]
    certs = cc.certify(votes, patch, "patchcleanser")
    assert stand.position == certs.min_k("patchcleanser", patch)[0]


def test_strips_have_no_rows():
    votes = cc.Votes(np.zeros((1, 6), int), [0], num_classes=2, ablation="columns:2", image_size=6)
    with pytest.raises(VotesError, match="only votes of masks have rows"):
        worst_standing(votes, 0, cc.Square(1))


@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
def test_a_drawing_has_a_cell_per_pair_and_outlines_what_hides_the_patch(soft):
    votes = random_votes(3, soft=soft)
    patch = cc.Square(2)
    stand = worst_standing(votes, 0, patch)
    example = Example("a", "best", votes, patch, stand, {("patchcleanser", "square:2"): (1, stand.position)})
    picture = drawing.picture(example, "0")
    titles = re.findall(r"<title>(masks? .*?) hidden: class (\d)(, the attacker’s)?</title>", picture)
    assert len(titles) == votes.num_mutants == 10
    assert [int(label) for _, label, _ in titles] == votes.ballots[0].tolist()
    assert {i for i, title in enumerate(titles) if title[2]} == set(stand.touched.tolist())
    assert picture.count("<circle") == len(stand.safe) + 1  # and one in the legend
    bars = drawing.bars(example, "0")
    assert "score + what the patch can add" in bars


def test_more_masks_than_can_be_drawn_are_counted():
    votes = random_votes(0, per_axis=9, patch=1, image_size=(18, 18))
    stand = worst_standing(votes, 0, cc.Square(1))
    example = Example("a", "best", votes, cc.Square(1), stand, {})
    assert "3,321 pairs of masks, too many to draw" in drawing.picture(example, "0")


@pytest.mark.parametrize("soft", [pytest.param(False, marks=pytest.mark.slow), True], ids=["hard", "soft"])
def test_the_page_of_a_run_of_masks(tmp_path, soft):
    votes = random_votes(5, 30, soft=soft)
    certs = cc.certify(votes, ["square:1", "square:2"])
    assert certs.defenders == ["patchcleanser"]
    write_votes(votes, tmp_path / "votes")
    write_certificates(certs, tmp_path / "certs", votes=tmp_path / "votes")
    made = invoke(
        [
            "report",
            str(tmp_path / "certs"),
            "--votes",
            str(tmp_path / "votes"),
            "--out",
            str(tmp_path / "a.html"),
        ]
    )
    assert made.exit_code == 0, made.stderr
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "masks hide the" in page or "mask hides the" in page
    assert "one cell for every pair of masks" in page
    assert "two masks" in page.split('id="promise"')[1]
    assert "Hides what a patch could cover" in page.split('id="glossary"')[1]


def test_votes_of_masks_certified_by_counting_have_a_page_too(tmp_path):
    votes = random_votes(6, 20)
    write_votes(votes, tmp_path / "votes")
    certs = cc.certify(votes, "square:2", "costcert")
    write_certificates(certs, tmp_path / "certs", votes=tmp_path / "votes")
    made = invoke(
        [
            "report",
            str(tmp_path / "certs"),
            "--votes",
            str(tmp_path / "votes"),
            "--out",
            str(tmp_path / "a.html"),
        ]
    )
    assert made.exit_code == 0, made.stderr
    assert "one cell for every pair of masks" not in (tmp_path / "a.html").read_text(encoding="utf-8")


def test_certify_says_how_many_mutants_hide_a_patch(tmp_path):
    votes = random_votes(7, 4)
    write_votes(votes, tmp_path / "votes")
    shown = invoke(["certify", str(tmp_path / "votes"), "--patch", "2"]).stdout
    sets = touched(votes.ablation, cc.Square(2), votes.image_size)
    assert f"at least {10 - sets.delta} of 10 mutants hide it" in shown
    assert "touches at most" not in shown
