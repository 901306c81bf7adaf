"""Tuning: chosen from ballots alone, measured by cross-validation, and read by vote and certify."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import costcert as cc
from command_line import invoke
from costcert.errors import CostcertError, StoreError
from costcert.geometry.ablations import parse_ablation
from costcert.geometry.touch import touched
from costcert.models.classifier import Soft, ballots_of
from costcert.votes import search, tuning
from costcert.votes.search import Goal, Search, Setting, Trials, VoteEstimates, neighbours
from costcert.votes.tuning import FOLDS, compare_runs, read_tuned, tune
from costcert.votes.voting import vote
from tiny import Tiny, pictures

WIDTH, CLASSES = 24, 6
# Fewer mutants to choose from, for a shorter search.
FEW = "columns:3/stride=4"


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
    found = tune(votes, [2, 4], k=[1, 2], defenders="costcert")
    everyone, soft, chosen = found.steps
    first, last = found.setting.ablation.span
    assert 2 <= first <= 8
    assert 15 <= last <= 21
    assert chosen.cross_validated > soft.cross_validated + 0.05
    assert chosen.cross_validated > everyone.cross_validated + 0.05
    assert chosen.passes < everyone.passes == WIDTH


def test_reported_accuracies_are_those_of_certify():
    votes = election(120)[0].select(FEW)
    found = tune(votes, cc.Square(3), k=1)
    for step in found.steps:
        name = step.setting.defender
        certificates = cc.certify(VoteEstimates(votes).under(step.setting), cc.Square(3), name)
        assert step.reached == pytest.approx((certificates.min_k(name, cc.Square(3)) <= 1).mean())
    assert found.defenders == ["costcert", "patchguard", "double-masking"]
    assert found.setting == max(found.steps, key=lambda step: step.cross_validated).setting


def test_defenders_that_take_long_are_tried_on_small_images_only(monkeypatch):
    votes = election(20)[0].select(FEW)
    positions = len(touched(votes.ablation, cc.Square(3), votes.image_size))
    monkeypatch.setattr(tuning, "_FEW_POSITIONS", positions)
    assert tune(votes, 3, k=1).defenders == ["costcert", "patchguard", "double-masking"]
    monkeypatch.setattr(tuning, "_FEW_POSITIONS", positions - 1)
    assert tune(votes, 3, k=1).defenders == ["costcert", "patchguard"]


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
    votes = election(100)[0].select(FEW)
    found = tune(votes, [2], k=1, most_passes=3)
    assert found.steps[0].passes == 6
    assert found.steps[-1].passes <= 3
    assert found.step.passes <= 3
    assert all(each.setting.ablation.count(votes.image_size) <= 3 for each in found.choices)


def test_a_limit_on_passes_does_not_stop_the_search_at_a_large_stride():
    """Mutants that say something are neighbours, so a few passes less cost little."""
    votes, _ = election(150)
    free = tune(votes, [2], k=1, defenders="costcert")
    limited = tune(votes, [2], k=1, defenders="costcert", most_passes=free.step.passes - 1)
    assert limited.step.passes < free.step.passes < WIDTH
    assert free.setting.ablation.stride == limited.setting.ablation.stride == 1
    assert limited.step.reached > free.step.reached - 0.1


def test_a_setting_is_evaluated_once_for_all_folds(monkeypatch):
    evaluated = []
    certified = Goal.certified

    def counted(self, votes, setting):
        evaluated.append((setting, len(votes)))
        return certified(self, votes, setting)

    monkeypatch.setattr(Goal, "certified", counted)
    votes = election(60)[0].select(FEW)
    goal = Goal((cc.Square(2), cc.Square(4)), (1, 2))
    trials = Trials(VoteEstimates(votes), goal)
    held_out = np.arange(12, 24)
    for of_fold in (Search(trials, None), Search(trials, None, held_out)):
        assert len(list(of_fold.steps("costcert"))) == 3
    assert len(evaluated) == len(set(evaluated))
    assert {count for _, count in evaluated} == {60}


def test_a_search_sees_only_the_images_that_are_not_held_out():
    votes = election(40)[0].select(FEW)
    goal = Goal((cc.Square(2),), (1, 2))
    held_out = np.arange(8, 16)
    of_fold = Search(Trials(VoteEstimates(votes), goal), None, held_out)
    setting = Setting(votes.ablation, None)
    rest = votes.hard().take(np.setdiff1d(np.arange(40), held_out))
    certificates = cc.certify(rest, cc.Square(2), "costcert")
    assert of_fold.shares(setting).tolist() == [
        [(certificates.min_k("costcert", cc.Square(2)) <= k).mean() for k in (1, 2)]
    ]


def test_settings_that_fall_behind_are_not_evaluated_on_all_images(monkeypatch):
    votes, _ = election(400)

    def tuned():
        """Certified images that were looked at, and the best setting's accuracy."""
        images = 0
        certified = Goal.certified

        def counted(self, votes, setting):
            nonlocal images
            images += len(votes)
            return certified(self, votes, setting)

        with monkeypatch.context() as patched:
            patched.setattr(Goal, "certified", counted)
            return tune(votes, [2], k=1, defenders="costcert").step.reached, images

    monkeypatch.setattr(search, "_FEWEST_AT_FIRST", len(votes) + 1)
    full, all_images = tuned()
    monkeypatch.setattr(search, "_FEWEST_AT_FIRST", 40)
    staged, images = tuned()
    assert images < all_images / 2
    assert staged > full - 0.02


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
        tuned = read_tuned(file)
        return f"{tuned}, {tuned.ablation.count(votes.image_size)} passes per image"

    assert tuned() == f"Tuned: {file} says {in_words()}"
    before = str(read_tuned(file))
    assert tuned() == f"Tuned: {file} says {in_words()} (as it did before)"
    line = tuned("--most-passes", "3")
    assert str(read_tuned(file)) != before
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


def test_subsets_of_pooled_families_are_near():
    """One family changes, or all alike, or one is left out; what comes is a subset of what was evaluated."""
    given = cc.parse_ablation("columns:3+rows:3")
    found = {str(each) for each in neighbours(given, given, (12, 12), 2)}
    assert {
        "columns:3/span=2-9+rows:3",
        "columns:3+rows:3/span=2-9",
        "columns:3/span=2-9+rows:3/span=2-9",
        "columns:3/stride=2+rows:3",
        "columns:3/stride=2+rows:3/stride=2",
        "columns:3",
        "rows:3",
    } <= found
    votes = cc.Votes(np.zeros((1, 24)), [0], num_classes=2, ablation=given, image_size=12)
    for each in found:
        assert 1 <= votes.select(each).num_mutants <= 24
    (inner,) = [each for each in neighbours(cc.Rows(3), given, (12, 12), 1) if each == cc.Rows(3, stride=2)]
    assert str(inner) == "rows:3/stride=2"


def test_pooled_votes_are_tuned_to_the_better_family():
    """Rows vote at random here."""
    columns = election(60)[0].select(FEW)
    rng = np.random.default_rng(1)
    of_rows = cc.Votes(
        rng.integers(0, CLASSES, (60, 6)), columns.truth, num_classes=CLASSES, ablation="rows:3/stride=4",
        image_size=WIDTH,
    )  # fmt: skip
    both = cc.Votes(
        np.concatenate([columns.ballots, of_rows.ballots], axis=1), columns.truth, num_classes=CLASSES,
        ablation=f"{FEW}+rows:3/stride=4", image_size=WIDTH,
    )  # fmt: skip
    found = tune(both, [2], k=1, defenders="costcert")
    assert str(found.setting.ablation).startswith("columns:3")
    assert found.step.passes <= 6
    alone = tune(columns.hard(), [2], k=1, defenders="costcert")
    assert found.step.reached >= alone.step.reached


def test_the_networks_of_an_ensemble_are_counted_as_passes():
    votes = election(60)[0].select(FEW).replace(provenance={"model": {"name": "a + b", "networks": 2}})
    found = tune(votes, [2], k=1, defenders="costcert", most_passes=6)
    assert found.steps[0].passes == 12
    assert found.step.passes <= 6
    assert found.setting.ablation.count((WIDTH, WIDTH)) <= 3


@pytest.mark.slow
def test_vote_and_certify_read_the_choice(tmp_path):
    votes, _ = election(80)
    cc.write_votes(votes, tmp_path / "votes")
    words = ["tune", str(tmp_path / "votes"), "--patch", "2,4", "--k", "1,2", "--defender", "costcert"]
    result = invoke(words)
    assert result.exit_code == 0, result.output
    file = tmp_path / "tuned.json"
    ablation, soft = read_tuned(file).ablation, read_tuned(file).soft
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
    for options, said in (
        ({"temperature": "a"}, "the temperature must be above 0, got 'a'"),
        ({"most_passes": 0}, "the most passes must be"),
        ({"defenders": "costcrt"}, "did you mean 'costcert'"),
        ({"defenders": [3]}, "a defender must be a name, got 3"),
        ({"defenders": []}, "no defender given"),
    ):
        with pytest.raises(CostcertError, match=said):
            tune(votes, 2, **options)
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


def pairs(count=40, seed=0, *, per_axis=2, patch=3, noise=1.0, temperature=1.0):
    """Votes of masks on the images of `election`, most of which favour the true label."""
    rng = np.random.default_rng(seed)
    others, _ = election(count, seed)
    ablation = cc.Masks(per_axis, patch=patch)
    logits = rng.normal(0, noise, (count, ablation.count((WIDTH, WIDTH)), CLASSES)).astype(np.float32)
    for n, label in enumerate(others.truth):
        logits[n, :, label] += rng.normal(2, 1)
    return cc.Votes.from_logits(
        logits, others.truth, ablation=ablation, image_size=WIDTH, soft=Soft(temperature, CLASSES)
    )


def slowly(votes, setting, patches, ks):
    """[N, P, K], whether an image is certified, one patch at a time from `certify` alone."""
    estimated = VoteEstimates(votes).under(setting)
    hits = np.zeros((len(votes), len(patches), len(ks)), bool)
    for p, patch in enumerate(patches):
        try:
            found = cc.certify(estimated, patch, setting.defender, mask=setting.mask)
        except CostcertError:
            continue
        for at, k in enumerate(ks):
            hits[:, p, at] = found.min_k(setting.defender, patch) <= k
    return hits


@pytest.mark.parametrize(
    "defenders",
    [
        "patchguard",
        pytest.param(None, marks=pytest.mark.slow),
        pytest.param(["costcert-masks", "cbn"], marks=pytest.mark.slow),
    ],
)
def test_what_is_reported_of_each_defender_is_what_certify_says(defenders):
    votes = election(60, 3)[0].select(FEW)
    patches, ks = [cc.Square(2), cc.Square(4)], [1, 3]
    found = tune(votes, patches, ks, defenders=defenders)
    for step in found.steps:
        hits = slowly(votes, step.setting, patches, ks)
        assert step.reached == pytest.approx(hits.mean())
        assert (step.setting.mask is None) == (step.setting.defender in ("costcert", "cbn"))
    assert found.step.cross_validated == max(step.cross_validated for step in found.steps)
    assert len(found.choices) == 4 * len(found.defenders)
    for each in found.choices:
        hits = slowly(votes, each.setting, patches, ks)
        assert each.reached == hits[:, patches.index(each.patch), ks.index(each.k)].mean()
        assert each.setting.mask in (None, each.patch)
        # The search tried the settings of the steps as well, so none of them is better.
        for step in found.steps:
            if step.setting.defender == each.setting.defender:
                alone = slowly(votes, replace(step.setting, mask=each.setting.mask), patches, ks)
                assert each.reached >= alone[:, patches.index(each.patch), ks.index(each.k)].mean()
    for patch in patches:
        for k in ks:
            best = found.choice(patch, k)
            assert best.cross_validated == max(
                found.choice(patch, k, name).cross_validated for name in found.defenders
            )


def test_every_candidate_of_masks_is_tried():
    """Masks have temperatures alone to choose from: all of them, one by one, with and without each fold."""
    votes = pairs(30)
    found = tune(votes, [2, 3], [1, 2])
    assert [step.name for step in found.steps] == ["all, hard", "all, soft"]
    patches, ks = [cc.Square(2), cc.Square(3)], [1, 2]

    candidates = [
        Setting(votes.ablation, temperature, "patchcleanser")
        for temperature in VoteEstimates(votes).temperatures
    ]
    hits = [slowly(votes, setting, patches, ks) for setting in candidates]

    def best(images):
        return max(range(len(candidates)), key=lambda at: hits[at][images].mean())

    everyone = np.arange(len(votes))
    assert found.steps[1].setting == candidates[best(everyone)]
    assert found.steps[1].reached == pytest.approx(hits[best(everyone)].mean())
    held_out = np.concatenate(
        [hits[best(np.setdiff1d(everyone, fold))][fold] for fold in np.array_split(everyone, FOLDS)]
    )
    assert found.steps[1].cross_validated == pytest.approx(held_out.mean())
    assert np.allclose(found.steps[1].by_patch, held_out.mean(axis=0))
    for each in found.choices:
        cell = (slice(None), patches.index(each.patch), ks.index(each.k))
        assert each.reached == max(hit[cell].mean() for hit in hits)


@pytest.mark.slow
def test_a_masking_defender_masks_for_the_patch_that_is_best_for_the_goal():
    votes, _ = election(60, 1)
    found = tune(votes, [2, 4], 1, defenders="patchguard")
    for step in found.steps:
        by_mask = {
            mask: slowly(votes, replace(step.setting, mask=mask), [cc.Square(2), cc.Square(4)], [1]).mean()
            for mask in (cc.Square(2), cc.Square(4))
        }
        assert by_mask[step.setting.mask] == max(by_mask.values())
    # A classifier that masks for the smaller patch says nothing about the larger one.
    small = slowly(votes, replace(found.setting, mask=cc.Square(2)), [cc.Square(2), cc.Square(4)], [1])
    assert small[:, 0].any()
    assert not small[:, 1].any()


def test_masks_for_a_smaller_patch_are_refused_with_both_sizes():
    with pytest.raises(CostcertError, match="cover patches of up to 3x3 pixels, but square:5 has 5x5"):
        tune(pairs(20), [2, 5])
    with pytest.raises(CostcertError, match="cannot be tuned to 3 passes per image: the fewest found are 10"):
        tune(pairs(20), 2, most_passes=3)
    with pytest.raises(CostcertError, match="patchcleanser needs votes of masks"):
        tune(election(20)[0], 2, defenders="patchcleanser")


@pytest.mark.slow
def test_the_best_of_several_runs_is_that_of_tuning_each():
    columns = election(40)[0].select(FEW)
    runs = {"columns": columns, "few": pairs(40), "more": pairs(40, 0, per_axis=3, patch=4, noise=0.5)}
    found = compare_runs(runs, [2, 4], [1, 2])
    assert [row.name for row in found.rows] == list(runs)
    for row in found.rows:
        covered = [patch for patch in found.goal.patches if patch not in row.refusals]
        assert len(covered) == (1 if row.name == "few" else 2)
        alone = tune(runs[row.name], covered, [1, 2])
        if len(covered) == 2:
            assert row.tuning == alone
        assert row.score == pytest.approx(row.tuning.step.cross_validated)
        for patch in found.goal.patches:
            for k in (1, 2):
                if patch in row.refusals:
                    assert row.certified(patch, k) is None
        setting = row.tuning.setting
        ranks = cc.certify(
            VoteEstimates(runs[row.name]).under(setting), covered[0], setting.defender, mask=setting.mask
        ).rank(setting.defender, covered[0])
        assert row.clean == (ranks == 1).mean()
    assert "up to 3x3 pixels, but square:4 has 4x4" in found.rows[1].refusals[cc.Square(4)]
    assert found.best.score == max(row.score for row in found.rows)


def test_runs_on_other_images_are_not_compared():
    columns, _ = election(20)
    flipped = pairs(20).truth.copy()
    flipped[3] = (flipped[3] + 1) % CLASSES
    for other, said in (
        (pairs(20).replace(truth=flipped), "have other true labels"),
        (pairs(30), "have other images"),
        (pairs(20).replace(image_ids=[f"x{n}" for n in range(20)]), "have other images"),
    ):
        with pytest.raises(CostcertError, match=said):
            compare_runs({"a": columns, "b": other}, 2)
    for runs in ({}, columns, [columns]):
        with pytest.raises(CostcertError, match="runs must be votes by name"):
            compare_runs(runs, 2)
    with pytest.raises(CostcertError, match="up to 3x3 pixels, but square:9 has 9x9"):
        compare_runs({"a": pairs(20), "b": pairs(20, 1).replace(truth=pairs(20).truth)}, 9)


def test_the_command_compares_runs_and_writes_only_where_it_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    cc.write_votes(election(20)[0].select(FEW), tmp_path / "columns")
    cc.write_votes(pairs(20), tmp_path / "masks")
    words = ["tune", str(tmp_path / "columns"), str(tmp_path / "masks"), "-p", "2,4", "-k", "1,2"]
    result = invoke(words)
    assert result.exit_code == 0, result.output
    assert not list(tmp_path.rglob("tuned.json"))
    assert max(map(len, result.stdout.splitlines())) <= 80
    said = " ".join(result.stdout.split())
    assert "masks:2/patch=3 cover patches of up to 3x3 pixels, but square:4 has 4x4" in said
    lines = result.stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("square:4"))
    assert lines[at + 1].split() == ["masks", "-", "-"]
    written = invoke([*words, "--out", str(tmp_path / "best")])
    assert written.exit_code == 0, written.output
    tuned = read_tuned(tmp_path / "best" / "tuned.json")
    (best,) = [line.split(": ")[1] for line in lines if line.startswith("Best for all")]
    assert str(tuned.ablation).startswith(best)
    twice = invoke(["tune", str(tmp_path / "masks"), str(tmp_path / "masks"), "-p", "2"])
    assert (twice.exit_code, "named twice" in twice.stderr) == (2, True)


def test_certify_takes_the_defender_that_was_chosen(tmp_path):
    votes, _ = election(30)
    cc.write_votes(votes, tmp_path / "votes")
    file, certs = tmp_path / "t.json", tmp_path / "certs"
    chosen = {"format": "costcert tuning", "version": 1, "ablation": "columns:3"}
    chosen |= {"soft": {"temperature": 1.0, "best": CLASSES}, "defender": "patchguard", "mask": "square:4"}
    file.write_text(json.dumps(chosen))
    words = ["certify", str(tmp_path / "votes"), "--tuned", str(file), "--patch"]
    result = invoke([*words, "2,4", "--out", str(certs)])
    assert result.exit_code == 0, result.output
    assert "As tuned: ranked by patchguard masking square:4" in result.stdout
    found, expected = cc.read_certificates(certs), cc.certify(votes, [2, 4], "patchguard", mask=4)
    for patch in (2, 4):
        assert (found.min_k("patchguard", patch) == expected.min_k("patchguard", patch)).all()
        assert (found.rank("patchguard", patch) == expected.rank("patchguard", patch)).all()
    assert found.classifier.mask == cc.Square(4)
    checked = invoke(["check", str(certs), "--votes", str(tmp_path / "votes"), "--all"])
    assert (checked.exit_code, "all alike" in checked.stdout) == (0, True), checked.output
    larger = invoke([*words, "6"])
    assert larger.exit_code == 2
    assert "touches mutants outside the windows of square:4" in " ".join(larger.stderr.split())
    other = invoke([*words, "6", "--defender", "costcert"])
    assert (other.exit_code, "As tuned" in other.stdout) == (0, False), other.output
    # Files of earlier versions name no defender.
    file.write_text(json.dumps({key: chosen[key] for key in ("format", "version", "ablation", "soft")}))
    earlier = invoke([*words, "2"])
    assert (earlier.exit_code, "As tuned" in earlier.stdout) == (0, False), earlier.output
    assert read_tuned(file) == cc.Defence(parse_ablation("columns:3"), soft=Soft(1.0, CLASSES))


def test_tuned_files_of_anything_get_one_sentence(tmp_path):
    votes, _ = election(20)
    found, file = tune(votes, [2], 1), tmp_path / "t.json"
    found.write(file)
    content = json.loads(file.read_text())
    assert read_tuned(file).defender == found.setting.defender
    junk = [None, -1, 1e400, 10**400, "", "x" * 5000, "patchguard", "costcert", "square:3", [], {}, [[]]]
    temperatures, labels = (None, "a", -1, 10**400), (1, None, "b")
    junk += [{"temperature": bad, "best": best} for bad in temperatures for best in labels]
    said, taken = [], set()
    for key in ("format", "version", "ablation", "soft", "defender", "mask"):
        for value in junk:
            file.write_text(json.dumps({**content, key: value}))
            try:
                read_tuned(file)
                taken.add(key)
            except StoreError as error:
                said.append(str(error))
    assert taken <= {"soft", "defender", "mask"}
    assert len(said) > 100
    assert not [sentence for sentence in said if "\n" in sentence]
    for wrong in ({"defender": "costcert", "mask": "square:2"}, {"defender": None, "mask": "square:2"}):
        file.write_text(json.dumps({**content, **wrong}))
        with pytest.raises(StoreError, match="no defender that masks"):
            read_tuned(file)


def test_attack_takes_the_defender_and_the_mask_that_were_chosen(tmp_path):
    pytest.importorskip("torch", reason="the shipped model needs costcert[models]")
    file = tmp_path / "t.json"
    chosen = {"format": "costcert tuning", "version": 1, "ablation": "columns:4/stride=4", "soft": None}
    file.write_text(json.dumps({**chosen, "defender": "patchguard", "mask": "square:4"}))
    words = ["attack", "--model", "shipped:fashion", "--data", "sample", "--limit", "2", "--patch", "2"]
    words += ["--places", "1", "--restarts", "0", "--random", "1", "--steps", "0", "--tuned", str(file)]
    for more, defender, mask in (([], "patchguard", "square:4"), (["-d", "costcert"], "costcert", None)):
        result = invoke([*words, *more, "--out", str(tmp_path / defender)])
        assert result.exit_code == 0, result.output
        attacked = json.loads((tmp_path / defender / "manifest.json").read_text())["classifier"]
        assert (attacked["defender"], attacked["mask"]) == (defender, mask)
