"""Tuning: chosen from ballots alone, measured by cross-validation, and read by vote and certify."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import costcert as cc
from command_line import invoke
from costcert.errors import CostcertError, StoreError
from costcert.models.classifier import Soft, ballots_of
from costcert.votes.tuning import Setting, VoteEstimates, read_tuned, tune
from costcert.votes.voting import vote
from tiny import Tiny, pictures

WIDTH, CLASSES = 24, 6


def election(count=300, seed=0, *, temperature=1.0, wrong_border=5):
    """Mutants near the border vote at random; those inside favour the true label more or less clearly."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, CLASSES, count)
    logits = rng.normal(size=(count, WIDTH, CLASSES)).astype(np.float32)
    inside = slice(wrong_border, WIDTH - wrong_border)
    sure = rng.normal(1.5, 1.2, size=(count, WIDTH))
    for n in range(count):
        logits[n, inside, truth[n]] += sure[n, inside] + 1
    ballots = ballots_of(logits, Soft(temperature, CLASSES))
    return cc.Votes.soft(
        ballots.soft_labels,
        ballots.soft_units,
        truth,
        ballots=ballots.labels,
        num_classes=CLASSES,
        ablation="columns:3",
        image_size=WIDTH,
        temperature=temperature,
    ), logits


@pytest.mark.slow
def test_mutants_that_vote_at_random_are_left_out():
    votes, _ = election()
    found = tune(votes, [2, 4], k=[1, 2])
    everyone, soft, chosen = found.steps
    first, last = found.setting.ablation.span
    assert 2 <= first <= 8
    assert 15 <= last <= 21
    assert chosen.cross_validated > soft.cross_validated + 0.05
    assert chosen.cross_validated > everyone.cross_validated + 0.05
    assert chosen.passes < everyone.passes == WIDTH


def test_reported_accuracies_are_those_of_certify():
    votes, _ = election(120)
    found = tune(votes, cc.Square(3), k=1)
    for step in found.steps:
        certificates = cc.certify(VoteEstimates(votes).under(step.setting), cc.Square(3), "costcert")
        assert step.reached == pytest.approx((certificates.min_k("costcert", cc.Square(3)) <= 1).mean())
    assert found.setting == max(found.steps, key=lambda step: step.cross_validated).setting


def test_cross_validated_accuracies_come_from_held_out_images():
    """If labels are noise there is nothing to gain, and the cross-validated accuracy must not claim any."""
    rng = np.random.default_rng(5)
    votes = cc.Votes(
        rng.integers(0, 2, (60, 12)),
        rng.integers(0, 2, 60),
        num_classes=2,
        ablation="columns:2",
        image_size=12,
    )
    found = tune(votes, [1], k=1)
    assert found.steps[-1].reached >= found.steps[-1].cross_validated
    assert found.steps[-1].cross_validated < 0.5


def test_fewer_passes_on_request():
    votes, _ = election(100)
    found = tune(votes, [2], k=1, most_passes=6)
    assert found.steps[-1].passes <= 6


def test_a_power_of_one_changes_nothing():
    votes, _ = election(40)
    assert (votes.tempered(1.0).units == votes.units).all()


@given(st.floats(0.2, 12), st.integers(0, 5))
def test_tempered_ballots_are_those_of_that_temperature(power, seed):
    """If ballots name all labels, up to the error of rounding down."""
    votes, logits = election(6, seed)
    tempered = votes.tempered(power)
    assert tempered.units.min() >= 0
    assert tempered.units.sum(axis=2).max() <= votes.cap
    if power >= 1:
        direct = ballots_of(logits, Soft(1 / power, CLASSES))
        assert (direct.soft_labels == tempered.labels).all()
        assert np.abs(direct.soft_units - tempered.units).max() <= 3 * power + 12


@given(st.integers(1, 70000), st.floats(0.1, 20), st.randoms(use_true_random=False))
def test_tempering_never_gives_more_than_the_cap(cap, power, random):
    units = []
    left = cap
    for _ in range(4):
        units.append(random.randint(0, left))
        left -= units[-1]
    votes = cc.Votes.soft(
        [[[0, 1, 2, 3]]], [[units]], [0], cap=cap, num_classes=4, ablation="columns:1", image_size=(1, 1)
    )
    tempered = votes.tempered(power)
    assert tempered.units.min() >= 0
    assert tempered.units.sum() <= cap
    assert (np.diff(tempered.units[0, 0][np.argsort(units)]) >= 0).all()


def test_the_command_says_what_it_wrote_and_what_it_replaced(tmp_path):
    votes, _ = election(30)
    cc.write_votes(votes, tmp_path / "votes")
    file = tmp_path / "tuned.json"
    words = ["tune", str(tmp_path / "votes"), "--patch", "2", "--k", "1"]

    def tuned(*more):
        result = invoke([*words, *more])
        assert result.exit_code == 0, result.output
        (line,) = [line for line in result.stdout.splitlines() if line.startswith("Tuned:")]
        return line

    def in_words():
        ablation, soft = read_tuned(file)
        return (
            f"{ablation} with {soft or 'hard ballots'}, {ablation.count(votes.image_size)} passes per image"
        )

    assert tuned() == f"Tuned: {file} says {in_words()}"
    before = in_words().rpartition(",")[0]
    assert tuned() == f"Tuned: {file} says {in_words()} (as it did before)"
    line = tuned("--most-passes", "3")
    assert in_words().rpartition(",")[0] != before
    assert line == f"Tuned: {file} says {in_words()} (replaced: it said {before})"


def test_a_file_of_another_program_is_not_overwritten(tmp_path):
    votes, _ = election(30)
    cc.write_votes(votes, tmp_path / "votes")
    (tmp_path / "mine.json").write_text('{"my": "results"}')
    words = ["tune", str(tmp_path / "votes"), "--patch", "2", "--out", str(tmp_path / "mine.json")]
    refused = invoke(words)
    assert refused.exit_code == 2
    assert (
        "mine.json was not written by this version of `costcert tune`, so it is not overwritten"
        in refused.stderr
    )
    assert (tmp_path / "mine.json").read_text() == '{"my": "results"}'


@pytest.mark.slow
def test_vote_and_certify_read_the_choice(tmp_path):
    votes, _ = election(80)
    cc.write_votes(votes, tmp_path / "votes")
    words = ["tune", str(tmp_path / "votes"), "--patch", "2,4", "--k", "1,2"]
    result = invoke(words)
    assert result.exit_code == 0, result.output
    file = tmp_path / "tuned.json"
    ablation, soft = read_tuned(file)
    assert soft.best == CLASSES
    # The ballots of another temperature cannot be derived exactly from these.
    certify = ["certify", str(tmp_path / "votes"), "--tuned", str(file), "--patch", "2,4", "-d", "costcert"]
    result = invoke([*certify, "--out", str(tmp_path / "certs")])
    assert result.exit_code == 2
    assert "vote again with those soft ballots" in " ".join(result.stderr.split())
    assert not (tmp_path / "certs").exists()
    # A subset of the mutants needs no further evaluation.
    file.write_text(
        json.dumps({**json.loads(file.read_text()), "soft": {"temperature": 1.0, "best": CLASSES}})
    )
    result = invoke([*certify, "--out", str(tmp_path / "certs")])
    assert result.exit_code == 0, result.output
    found, expected = cc.read_certificates(tmp_path / "certs"), cc.certify(votes.select(ablation), [2, 4])
    for patch in (2, 4):
        assert (found.min_k("costcert", patch) == expected.min_k("costcert", patch)).all()
    assert found.classifier == cc.Defence(ablation, soft=Soft(1.0, CLASSES))


def test_votes_made_as_chosen_are_certified_as_they_are():
    votes = vote(Tiny(), pictures(20), "columns:3", soft=Soft(0.5, 4))
    chosen = vote(Tiny(), pictures(20), "columns:3/span=1-6", soft=Soft(0.25, 4))
    tempered = VoteEstimates(votes).under(Setting(chosen.ablation, 0.25))
    assert (tempered.labels == chosen.labels).all()
    assert np.abs(tempered.units - chosen.units).max() <= 40
    assert VoteEstimates(chosen).under(Setting(chosen.ablation, 0.25)) is chosen


def test_bad_input(tmp_path):
    votes, _ = election(30)
    hard = votes.hard()
    with pytest.raises(CostcertError, match="needs soft ballots, but these votes are hard"):
        VoteEstimates(hard, None).under(Setting(hard.ablation, 0.5))
    with pytest.raises(CostcertError, match="at least 10 images, got 4"):
        tune(votes.take(slice(4)), [2])
    with pytest.raises(CostcertError, match="hard ballots have no temperature"):
        hard.tempered(2)
    with pytest.raises(CostcertError, match="the power must be above 0"):
        votes.tempered(0)
    for text in ("{}", "[]", '{"format": "costcert tuning", "version": 1, "soft": {}}', "\x00"):
        (tmp_path / "t.json").write_text(text)
        with pytest.raises(StoreError):
            read_tuned(tmp_path / "t.json")
    cc.write_votes(votes, tmp_path / "votes")
    for words, said in (
        (["tune", "{}/votes", "--patch", "99"], "does not fit"),
        (["tune", "{}/nothing", "--patch", "2"], "is not there"),
        (["certify", "{}/votes", "--patch", "2", "--tuned", "{}/t.json"], "cannot be read as JSON"),
        (["certify", "{}/votes", "--patch", "2", "--tuned", "{}/t.json", "--hard"], "leave --ablation"),
        (["certify", "{}/votes", "--patch", "2", "--tuned", "{}/none.json"], "is not there"),
    ):
        result = invoke([word.format(tmp_path) for word in words])
        assert result.exit_code == 2, result.output
        assert said in " ".join(result.stderr.split())
