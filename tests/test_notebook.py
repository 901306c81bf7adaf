"""What a notebook shows: small, escaped, loading nothing, and telling what is there."""

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import costcert as cc
from costcert.reports.results import read_results

EVIL = "<script>alert(1)</script>"


def votes(**more):
    rng = np.random.default_rng(0)
    names = [EVIL, 'b"&', "c", "d"]
    return cc.Votes.from_logits(
        rng.normal(size=(5, 8, 4)),
        [0, 1, 2, 0, 1],
        ablation="columns:3",
        image_size=(6, 8),
        class_names=names,
        image_ids=[f"{EVIL}{index}" for index in range(5)],
        **more,
    )


def results(tmp_path):
    cc.write_votes(votes(), tmp_path / "votes")
    cc.write_certificates(cc.certify(votes(), ["1", "2"]), tmp_path / "certs", votes=tmp_path / "votes")
    return read_results(tmp_path / "certs", name=EVIL)


SHOWN = {
    "votes": lambda tmp_path: votes(),
    "soft votes": lambda tmp_path: votes(soft=cc.Soft(0.5, 2)),
    "certificates": lambda tmp_path: cc.certify(votes(), ["1", "2"]),
    "results": results,
    "witness": lambda tmp_path: cc.strongest(votes(), 0, "2"),
    "several patches": lambda tmp_path: cc.strongest(votes(), 1, "2*square:1"),
    "a shape": lambda tmp_path: cc.strongest(votes(soft=cc.Soft(0.5, 3)), 2, "shape:01/11"),
}


@pytest.mark.parametrize("name", SHOWN)
def test_the_markup_is_whole_escaped_and_loads_nothing(name, tmp_path):
    markup = SHOWN[name](tmp_path)._repr_html_()
    # Parsed as XML: every element is closed, every name is escaped.
    tree = ElementTree.fromstring(markup)
    assert "script" not in {element.tag.lower() for element in tree.iter()}
    assert not re.search(r"(?i)\b(href|src|url\(|@import|on\w+=)", markup)
    assert len(markup) < 20_000


@pytest.mark.parametrize("name", SHOWN)
def test_text_takes_the_colour_of_the_page(name, tmp_path):
    """No text or background has a colour of its own, except the squares of the legend."""
    tree = ElementTree.fromstring(SHOWN[name](tmp_path)._repr_html_())
    for element in tree.iter():
        style = element.get("style", "")
        assert "background:#" not in style
        if "color:#" in style:
            assert element.text == "■"
        if element.tag == "text":
            assert "fill" not in element.attrib


def test_accuracies_are_those_of_the_table():
    certificates = cc.certify(votes(), ["1", "2"])
    markup = certificates._repr_html_()
    for row in certificates.accuracy([1, 2, 3]).itertuples():
        assert f"{100 * row.certified:.1f} ({100 * row.clean:.1f})" in markup
    assert "top-3" in markup
    # The top 4 of 4 classes promises nothing.
    assert "top-4" not in markup
    assert "top-5" not in markup


def test_a_witness_shows_the_patch_and_what_it_rewrites():
    found = cc.strongest(votes(), 0, "2")
    tree = ElementTree.fromstring(found._repr_html_())
    orange = [each for each in tree.iter("rect") if each.get("fill") == "#D55E00"]
    (top, left), scale = found.places[0], 200 / 8
    assert float(orange[0].get("x")) == pytest.approx(left * scale, abs=0.1)
    assert float(orange[0].get("y")) == pytest.approx(top * scale, abs=0.1)
    assert float(orange[0].get("width")) == pytest.approx(2 * scale, abs=0.1)
    touched = sum(float(each.get("width")) for each in orange[1:]) / scale
    assert round(touched) == len(found.touched)


def test_what_things_are_in_one_line(tmp_path):
    attack = cc.strongest(votes(), 2, "2")
    (top, left) = attack.places[0]
    assert repr(attack) == (
        f"Witness(square:2 at ({top}, {left}) touches {len(attack.touched)} of 8 mutants: "
        f"'c' ends at place {attack.position})"
    )
    assert repr(cc.certify(votes(), "2", "drs")) == (
        "Certificates(5 images, 4 classes; defenders drs; patches square:2)"
    )
    assert repr(results(tmp_path)) == (
        f"Results({EVIL}: 5 images; defenders costcert, costcert-masks, patchguard, cbn, drs; "
        "patches square:1, square:2)"
    )
    for text in (repr(votes()), repr(attack), repr(results(tmp_path))):
        assert "\n" not in text
