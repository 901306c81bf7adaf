"""The checker shares no code with the library, agrees with it, and detects every changed byte."""

import ast
import csv
import json
import os
import random
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import costcert as cc
import naive
from command_line import invoke
from costcert import compiled
from costcert.cli.check import CheckOptions
from costcert.cli.check import check as run
from costcert.datasets.subsets import Subset, limited
from costcert.errors import CostcertError
from costcert.geometry.ablations import Segment
from costcert.models.classifier import Soft
from costcert.store.votes import VotesFolder
from costcert.verification import checker as check
from costcert.verification import digests as chain
from costcert.verification import elections as counting
from costcert.verification import pixels as geometry
from costcert.votes.voting import vote
from sealing import classifier_with, resealed
from strategies import elections, examples, masked_elections, masked_scenes, scenes, soft_elections, ties
from tiny import Tiny, pictures

HARD = ("costcert", "costcert-masks", "patchguard", "double-masking", "cbn", "drs")


def costcert(*args):
    return invoke([str(arg) for arg in args])


@pytest.mark.parametrize("module", [check, counting, geometry, chain])
def test_the_checker_shares_no_code_with_what_it_checks(module):
    source = Path(module.__file__).read_text()
    imported = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0
            # What the checker takes from beside it shares no code either.
            shared = node.module in (counting.__name__, geometry.__name__)
            imported.add("" if shared else node.module.partition(".")[0])
        elif isinstance(node, ast.Import):
            imported |= {name.name.partition(".")[0] for name in node.names}
    assert imported <= set(sys.stdlib_module_names) | {"pyarrow", ""}
    assert len(source.splitlines()) < 256


def question_of(votes, **asked):
    """The question that certificates of these votes would answer."""
    described = {
        "classifier": votes.classifier.to_json(),
        "image_size": list(votes.image_size),
        "num_classes": votes.num_classes,
    }
    classifier = {**votes.classifier.to_json(), "ties": asked.pop("ties", "against")}
    manifest = {"classifier": classifier, "defenders": ["costcert"], "patches": ["square:1"]}
    return check.Question({**manifest, "epsilon": None, "tau": 0, **asked}, described)


def rows_of(votes):
    for image in range(len(votes)):
        row = {"truth": int(votes.truth[image]), "ballots": votes.ballots[image].tolist()}
        if votes.is_soft:
            row["soft_labels"] = votes.labels[image].ravel().tolist()
            row["soft_units"] = votes.units[image].ravel().tolist()
        for name in ("margins", "cuts", "known"):
            if getattr(votes, name) is not None:
                row[name] = getattr(votes, name)[image].tolist()
        yield row


@given(scenes() | masked_scenes())
def test_it_counts_the_pixels_of_every_place_and_mutant(scene):
    kept = check.mutants(str(scene.ablation), *scene.image_size)
    pixels = [
        frozenset((y, x) for y, columns in enumerate(rows) for x in range(99) if columns >> x & 1)
        for rows in kept
    ]
    assert pixels == scene.mutants
    found = check.touched(str(scene.ablation), str(scene.patch), *scene.image_size)
    windows = naive.maximal(scene.sets)
    assert sorted(found) == sorted(sum(1 << i for i in window) for window in windows)


worlds = elections(scenes()) | soft_elections(scenes()) | masked_elections(masked_scenes())


@given(worlds, ties, st.integers(0, 4))
def test_it_agrees_with_the_library(election, ties, tau):
    votes, tau = election.votes(), tau if election.units is not None else 0
    certificates = cc.certify(votes, election.scene.patch, ties=ties, tau=tau)
    question = question_of(votes, ties=ties, tau=tau)
    for image, row in enumerate(rows_of(votes)):
        for defender, patch in certificates.keys:
            found = question.answer(row, defender, str(patch))
            expected = certificates.rank(defender, patch)[image], certificates.min_k(defender, patch)[image]
            assert found == expected, defender


@settings(max_examples=examples(150))
@given(worlds, ties, st.randoms(use_true_random=False))
def test_it_agrees_with_the_library_where_mutants_are_uncertain(election, ties, rng):
    votes = election.votes()
    # Some margins equal epsilon as 32-bit floats, and none as 64-bit floats.
    near = np.float32([[rng.choice([0, 0.1, 0.2]) for _ in row] for row in votes.ballots])
    votes = votes.replace(**{"cuts" if votes.is_soft else "margins": near})
    certificates = cc.certify(votes, election.scene.patch, ties=ties, epsilon=0.1)
    question = question_of(votes, ties=ties, epsilon=0.1)
    for image, row in enumerate(rows_of(votes)):
        for defender, patch in certificates.keys:
            expected = certificates.rank(defender, patch)[image], certificates.min_k(defender, patch)[image]
            assert question.answer(row, defender, str(patch)) == expected, defender


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.25])
def test_a_margin_of_just_epsilon_is_uncertain(epsilon):
    """Four of nine ballots for the truth: with them the attacker has five, and the truth keeps four."""
    least = np.float32(epsilon)
    for margin, min_k in ((least, 2), (np.nextafter(least, np.float32(1)), 1)):
        margins = np.float32([[margin] * 4 + [1] * 5])
        votes = cc.Votes(
            np.zeros((1, 9), int),
            [0],
            num_classes=2,
            ablation="columns:1",
            image_size=(1, 9),
            margins=margins,
        )
        found = cc.certify(votes, "1", "costcert", epsilon=epsilon)
        assert found.min_k("costcert", 1).tolist() == [min_k]
        question = question_of(votes, epsilon=epsilon)
        [row] = rows_of(votes)
        assert question.answer(row, "costcert", "square:1") == (1, min_k)


@settings(max_examples=examples(150))
@given(elections(scenes()), ties)
def test_it_agrees_with_the_definitions(election, ties):
    scene, classes = election.scene, election.num_classes
    question = question_of(election.votes(), ties=ties)
    slow = {
        "costcert": naive.costcert,
        "cbn": naive.cbn,
        "drs": naive.drs,
        "patchguard": naive.patchguard,
        "costcert-masks": naive.costcert_masks,
        "double-masking": naive.double_masking,
    }
    for image, row in enumerate(rows_of(election.votes())):
        ballots, truth = election.ballots(image), election.truth[image]
        for defender, formula in slow.items():
            _, min_k = question.answer(row, defender, str(scene.patch))
            assert min_k == formula(ballots, scene.windows, truth, classes, ties), defender


@settings(max_examples=examples(150))
@given(masked_elections(masked_scenes()), st.randoms(use_true_random=False), st.integers(0, 2))
def test_it_agrees_with_the_definition_of_patchcleanser(election, rng, tau):
    """Also where ballots were not evaluated, or are uncertain."""
    scene, classes = election.scene, election.num_classes
    tau = tau if election.units is not None else 0
    votes = election.votes()
    near = np.float32([[rng.choice([0, 1, 1, 1, 1]) for _ in row] for row in votes.ballots])
    known = np.array([[rng.random() < rng.choice([0.8, 1]) for _ in row] for row in votes.ballots])
    votes = votes.replace(known=known, **{"cuts" if votes.is_soft else "margins": near})
    question = question_of(votes, defenders=["patchcleanser"], tau=tau, epsilon=0.5)
    certs = cc.certify(votes, scene.patch, "patchcleanser", tau=tau, epsilon=0.5)
    for image, row in enumerate(rows_of(votes)):
        missing = frozenset(np.flatnonzero(~known[image]).tolist())
        unknown = missing | frozenset(np.flatnonzero(near[image] == 0).tolist())
        world = (election.truth[image], classes, election.cap)
        found = question.answer(row, "patchcleanser", str(scene.patch))
        sets = [attacked | unknown for attacked in scene.sets]
        bounded = min(tau, election.cap)
        assert found[1] == naive.patchcleanser(election.ballots(image), sets, scene.rows, *world, bounded)
        order = naive.pair_order(election.ballots(image), scene.rows, classes)
        rank = naive.patchcleanser(election.ballots(image), [missing], scene.rows, *world)
        assert found[0] == (rank if missing else order.index(election.truth[image]) + 1)
        of = certs.rank("patchcleanser", scene.patch), certs.min_k("patchcleanser", scene.patch)
        assert found == tuple(each[image] for each in of)


@settings(max_examples=examples(60))
@given(soft_elections(scenes(largest_side=5)), st.randoms(use_true_random=False), st.integers(0, 2), ties)
def test_it_agrees_with_the_definition_of_double_masking(election, rng, tau, ties):
    """With soft ballots, of which some are uncertain and the others may be off."""
    votes = election.votes()
    cuts = np.float32([[rng.choice([0, 1, 1, 1]) for _ in row] for row in votes.ballots])
    votes, patch = votes.replace(cuts=cuts), election.scene.patch
    question = question_of(votes, defenders=["double-masking"], tau=tau, epsilon=0.5, ties=ties)
    certs = cc.certify(votes, patch, "double-masking", tau=tau, epsilon=0.5, ties=ties)
    for image, row in enumerate(rows_of(votes)):
        uncertain = frozenset(np.flatnonzero(cuts[image] == 0).tolist())
        world = election.ballots(image), election.scene.windows, election.truth[image], election.num_classes
        expected = naive.double_masking(*world, ties, uncertain, election.cap, min(tau, election.cap))
        rank, min_k = question.answer(row, "double-masking", str(patch))
        assert min_k == expected == certs.min_k("double-masking", patch)[image]
        scores = naive.double_masked_scores(*world[:2], election.num_classes)
        assert rank == naive.rank(scores, election.truth[image]) == certs.rank("double-masking", patch)[image]


def test_masks_that_do_not_cover_the_patch_are_refused():
    votes = cc.Votes(
        np.zeros((1, 45), int), [0], num_classes=3, ablation="masks:3/patch=2", image_size=(8, 8)
    )
    [row], question = rows_of(votes), question_of(votes, defenders=["patchcleanser"])
    assert question.answer(row, "patchcleanser", "square:2") == (1, 1)
    for patch in ("square:3", "rectangle:1x4", "2*square:1"):
        with pytest.raises(ValueError, match="do not cover"):
            question.answer(row, "patchcleanser", patch)


def test_patchcleanser_says_nothing_about_strips():
    votes = some_votes()
    question = question_of(votes, defenders=["patchcleanser"])
    with pytest.raises(ValueError, match="'columns:2' are not masks"):
        question.answer(next(rows_of(votes)), "patchcleanser", "square:1")


def test_its_known_answers():
    """The paper's panda, and all 224 mutants right."""
    panda = counting.Election([[(0, 1)]] * 4 + [[(1, 1)]] * 9 + [[(2, 1)]] * 4, 1, 3, 1, lowest=False)
    touched = [0b111 << 4]
    assert (panda.min_k("cbn", touched, 0, 0), panda.min_k("costcert", touched, 0, 0)) == (3, 2)
    right = counting.Election([[(7, 1)]] * 224, 7, 1000, 1, lowest=False)
    touched = check.touched("columns:19", "square:96", 224, 224)
    assert {one.bit_count() for one in touched} == {114}
    answers = [right.min_k(defender, touched, 0, 0) for defender in ("costcert", "cbn", "patchguard")]
    assert answers == [2, 1000, 1000]


def test_what_is_too_large_for_it_gets_a_sentence():
    with pytest.raises(ValueError, match="50,176 mutants are too many for this checker"):
        check.touched("blocks:75", "square:32", 224, 224)
    with pytest.raises(ValueError, match="too many sets"):
        check.touched("columns:1", "3*square:1", 1, 80)


@pytest.mark.parametrize(
    "spelling",
    [
        *("", "columns", "columns:0x3", "columns:9", "columns:3/span=0-8", "rows:3"),
        *("masks:2", "masks:2/patch=3", "masks:2/patch=0", "masks:0/patch=1", "masks:2/patch=1+columns:3"),
    ],
)
def test_ablations_that_do_not_fit_are_refused(spelling):
    with pytest.raises(ValueError, match=r"cannot read the ablation|does not fit|are not masks"):
        check.mutants(spelling, 2, 8)


# Folders on disk.


def some_votes(count=12, *, soft=False, margins=True, mutants=8, **more):
    rng = np.random.default_rng(5)
    shape = count, mutants
    truth = rng.integers(0, 4, count)
    world = {
        "num_classes": 4,
        "ablation": "columns:2",
        "image_size": (3, 8),
        "margins": rng.random(shape) if margins else None,
        "cuts": rng.random(shape) if soft else None,
        **more,
    }
    ballots = np.where(rng.random(shape) < 0.7, truth[:, None], rng.integers(0, 4, shape))
    if not soft:
        return cc.Votes(ballots, truth, **world)
    units = rng.integers(0, 51, (*shape, 2))
    labels = np.stack([ballots, (ballots + rng.integers(1, 4, shape)) % 4], axis=2)
    return cc.Votes.soft(labels, units, truth, cap=100, **world)


@pytest.fixture
def folders(tmp_path):
    """Votes in three shards, and certificates of them."""
    cc.write_votes(some_votes(), tmp_path / "votes", shard_size=5)
    made = costcert("certify", tmp_path / "votes", "-p", "1,2", "-o", tmp_path / "certs")
    assert made.exit_code == 0, made.output
    return tmp_path


def checked(folders, *more):
    return costcert("check", folders / "certs", "--votes", folders / "votes", *more)


def test_good_folders_are_found_good(folders):
    result = checked(folders, "--all")
    assert result.exit_code == 0, result.output
    assert "certs is as it was written, 3 shards" in result.stdout
    assert "votes holds the votes that these certificates record" in result.stdout
    assert "120 derived again, of 12 images of 12 (all): all alike" in result.stdout
    alone = costcert("check", folders / "certs")
    assert (alone.exit_code, "not derived again; pass --votes" in alone.stdout) == (0, True)
    some = checked(folders, "--sample", 3, "--seed", 8)
    assert "30 derived again, of 3 images of 12 (a sample by seed 8): all alike" in some.stdout


@pytest.mark.parametrize(
    ("votes", "asked"),
    [
        (some_votes(), ["--ties", "lowest"]),
        (some_votes(), ["--epsilon", "0.2"]),
        (some_votes(), ["--ablation", "columns:2/stride=3", "--ties", "lowest"]),
        (some_votes(unread=np.arange(12) % 5 == 0), []),
        (some_votes(known=np.arange(96).reshape(12, 8) % 7 > 1), ["--epsilon", "0.1"]),
        (some_votes(soft=True, known=np.arange(96).reshape(12, 8) % 5 > 0), ["--tau", "2"]),
        (some_votes(ablation="blocks:2/stride=2/wrap=no", image_size=(4, 8), margins=False), []),
        (
            some_votes(
                ablation="rows:2/wrap=no+columns:3/span=0-5/wrap=no", image_size=(3, 8), margins=False
            ),
            [],
        ),
        (some_votes(soft=True), []),
        (some_votes(soft=True), ["--tau", "3"]),
        (some_votes(soft=True), ["--epsilon", "0.2"]),
        (some_votes(soft=True), ["--hard", "--epsilon", "0.2"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value.ablation),
)
def test_every_way_to_certify_can_be_checked(tmp_path, votes, asked):
    cc.write_votes(votes, tmp_path / "votes", shard_size=5)
    patches = "1,rectangle:1x3,shape:101/010,2*square:1"
    made = costcert("certify", tmp_path / "votes", "-p", patches, *asked, "-o", tmp_path / "certs")
    assert made.exit_code == 0, made.output
    result = checked(tmp_path, "--all")
    assert (result.exit_code, "all alike" in result.stdout) == (0, True), result.output


def masked_votes(**more):
    """Votes of ten mutants, each without one or two of four masks; most agree, as masks hide little."""
    world = {"ablation": "masks:2/patch=1x2", "image_size": (4, 8), "mutants": 10, **more}
    votes = some_votes(20, **world)
    agree = np.arange(20)[:, None] % 3 > 0
    changes = {"ballots": np.where(agree, votes.truth[:, None], votes.ballots)}
    if votes.is_soft:
        labels = np.where(agree[..., None], [0, 1] + votes.truth[:, None, None], votes.labels) % 4
        changes |= {"labels": labels, "units": np.maximum(votes.units, [30, 0])}
    return votes.replace(**changes)


@pytest.mark.parametrize(
    ("votes", "asked"),
    [
        (masked_votes(), []),
        (masked_votes(), ["--ties", "lowest", "--epsilon", "0.02"]),
        (masked_votes(), ["-d", "patchcleanser,costcert,patchguard"]),
        (masked_votes(unread=np.arange(20) % 5 == 0), []),
        (masked_votes(known=np.arange(200).reshape(20, 10) % 37 > 0), ["--epsilon", "0.02"]),
        (masked_votes(soft=True), []),
        (masked_votes(soft=True), ["--tau", "3", "--epsilon", "0.02"]),
        (masked_votes(soft=True), ["--hard"]),
        (masked_votes(soft=True, known=np.arange(200).reshape(20, 10) % 37 > 0), ["--tau", "2"]),
    ],
    ids=lambda value: " ".join(value) or "plain" if isinstance(value, list) else str(value.ablation),
)
def test_certificates_of_masks_can_be_checked(tmp_path, votes, asked):
    cc.write_votes(votes, tmp_path / "votes", shard_size=7)
    patches = "1,rectangle:1x2"
    made = costcert("certify", tmp_path / "votes", "-p", patches, *asked, "-o", tmp_path / "certs")
    assert made.exit_code == 0, made.output
    result = checked(tmp_path, "--all")
    assert (result.exit_code, "all alike" in result.stdout) == (0, True), result.output
    found = cc.read_certificates(tmp_path / "certs").min_k("patchcleanser", "rectangle:1x2")
    assert len(set(found.tolist())) > 1


def test_certificates_of_tuned_ballots_can_be_checked(tmp_path):
    vote(Tiny(), pictures(30), "columns:3", soft=Soft(0.5, 3), out=tmp_path / "votes", shard_size=11)
    tuned = {"format": "costcert tuning", "version": 1, "ablation": "columns:3/stride=2"}
    tuned |= {"soft": {"temperature": 0.5, "best": 3}, "goal": {"patches": ["square:2"], "k": [1]}}
    (tmp_path / "tuned.json").write_text(json.dumps({**tuned, "images": 30, "steps": []}))
    made = costcert(
        "certify", tmp_path / "votes", "-p", "2", "--tuned", tmp_path / "tuned.json", "-o", tmp_path / "certs"
    )
    assert made.exit_code == 0, made.output
    result = checked(tmp_path, "--all")
    assert (result.exit_code, "all alike" in result.stdout) == (0, True), result.output


@pytest.mark.parametrize("soft", [False, True])
def test_certificates_of_an_archive_can_be_checked(tmp_path, soft):
    votes = some_votes(soft=soft)
    arrays = {"ballots": votes.ballots}
    if soft:
        arrays = {"labels": votes.labels, "units": votes.units, "cuts": votes.cuts, "cap": 100}
    np.savez(tmp_path / "votes.npz", truth=votes.truth, margins=votes.margins, **arrays)
    world = ["--ablation", "columns:2", "--classes", 4, "--image-size", "3x8", "--epsilon", "0.1"]
    made = costcert("certify", tmp_path / "votes.npz", *world, "-p", "2", "-o", tmp_path / "certs")
    assert made.exit_code == 0, made.output
    ask = ["check", tmp_path / "certs", "--votes", tmp_path / "votes.npz", "--all", *world[:6]]
    result = costcert(*ask)
    assert (result.exit_code, "all alike" in result.stdout) == (0, True), result.output
    np.savez(tmp_path / "votes.npz", truth=votes.truth, margins=votes.margins + 1, **arrays)
    assert "digests differ" in costcert(*ask).stdout


def change(path, name, row, by):
    table = pq.read_table(path)
    values = table.column(name).to_pylist()
    values[row] = by(values[row])
    column = pa.array(values, table.schema.field(name).type)
    pq.write_table(table.set_column(table.column_names.index(name), name, column), path)


def test_a_wrong_certificate_is_named_even_under_right_digests(folders):
    shard = folders / "certs" / "shard-00001.parquet"
    stored = pq.read_table(shard).slice(13, 1).to_pylist()[0]
    change(shard, "min_k", 13, lambda min_k: min_k % 4 + 1)
    resealed(folders / "certs")
    result = checked(folders, "--all")
    assert result.exit_code == 1
    row = f"image {stored['image_id']}, {stored['defender']}, {stored['patch']}"
    says = f"{row}: stored rank {stored['rank']}, min-k {stored['min_k'] % 4 + 1}; derived rank"
    assert says in result.stdout
    assert f"min-k {stored['min_k']}" in result.stdout.split("derived")[-1]
    assert "1 differ" in result.stdout
    # The library itself reads them without an error.
    assert cc.read_certificates(folders / "certs")


def test_rows_in_another_order_are_noticed(folders):
    shard = folders / "certs" / "shard-00000.parquet"
    change(shard, "image_id", 0, lambda name: name + "!")
    resealed(folders / "certs")
    assert "expected a certificate of 0, costcert, square:1" in checked(folders, "--all").stdout


def test_other_ballots_are_noticed_even_under_right_digests(folders):
    change(folders / "votes" / "shard-00002.parquet", "truth", 1, lambda truth: (truth + 1) % 4)
    resealed(folders / "votes")
    result = checked(folders)
    assert (result.exit_code, "digests differ" in result.stdout) == (1, True)


def test_another_question_is_noticed_even_under_right_digests(folders):
    resealed(folders / "certs", classifier=classifier_with(folders / "certs", ties="lowest"))
    result = checked(folders, "--all")
    assert (result.exit_code, "derived rank" in result.stdout) == (1, True)


def test_an_unknown_file_among_the_shards_is_noticed(folders):
    (folders / "certs" / "shard-00003.parquet").write_bytes(b"")
    assert "shard-00003.parquet does not belong there" in checked(folders).stdout


EXPORTED = (".parquet", ".csv", ".json")


def cells(path):
    """Ways to change one cell of an exported file at a time, each with the row it is in."""
    rng = random.Random(17)
    kinds = ["image_id", "defender", "patch", "rank", "min_k"]
    rows = list(csv.DictReader(path.read_text().splitlines())) if path.suffix == ".csv" else None
    for turn in range(15):
        column = kinds[turn % len(kinds)]
        number = rng.randrange(120)

        def changed(value, column=column):
            others = {"defender": HARD, "patch": ("square:1", "square:2", "square:3"), "image_id": "0123"}
            choices = others.get(column, [1, 2, 3, 4])
            return rng.choice([each for each in choices if str(each) != str(value)])

        if path.suffix == ".parquet":
            about = {"costcert": pq.read_metadata(path).metadata[b"costcert"]}
            change(path, column, number, changed)
            pq.write_table(pq.read_table(path).replace_schema_metadata(about), path)
        elif path.suffix == ".csv":
            damaged = [dict(row) for row in rows]
            damaged[number][column] = changed(damaged[number][column])
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, kinds)
                writer.writeheader()
                writer.writerows(damaged)
        else:
            content = json.loads(path.read_text())
            content["certificates"][number][column] = changed(content["certificates"][number][column])
            path.write_text(json.dumps(content))
        yield number


@pytest.mark.slow
@pytest.mark.parametrize("ending", EXPORTED)
def test_a_changed_cell_of_an_export_is_named(folders, ending):
    path = folders / f"certs{ending}"
    assert costcert("certify", folders / "votes", "-p", "1,2", "-o", path).exit_code == 0
    ask = ["check", path, "--votes", folders / "votes"]
    result = costcert(*ask, "--all")
    assert result.exit_code == 0, result.output
    assert "120 derived again, of 12 images of 12 (all): all alike" in result.stdout
    assert "30 derived again, of 3 images" in costcert(*ask, "--sample", 3).stdout
    good = path.read_bytes()
    for number in cells(path):
        result = costcert(*ask, "--all")
        assert result.exit_code == 1, result.output
        assert f"Wrong: row {number + 1}: " in result.stdout, result.stdout
        path.write_bytes(good)
    assert costcert(*ask, "--all").exit_code == 0


@pytest.mark.slow
def test_a_changed_accuracy_of_an_export_is_named(folders):
    path = folders / "certs.json"
    assert costcert("certify", folders / "votes", "-p", "1,2", "-o", path).exit_code == 0
    good = json.loads(path.read_text())
    for number, column in product((0, 7, -1), good["accuracy"][0]):
        content = json.loads(json.dumps(good))
        value = content["accuracy"][number][column]
        content["accuracy"][number][column] = value + 1 if isinstance(value, float | int) else "cbn"
        if content == good:
            continue
        path.write_text(json.dumps(content))
        result = costcert("check", path, "--votes", folders / "votes")
        assert (result.exit_code, "accuracy of" in result.stdout) == (1, True), (number, column)


@pytest.mark.parametrize("ending", EXPORTED)
@pytest.mark.parametrize(
    ("soft", "asked"),
    [
        (False, ["--ties", "lowest", "--ablation", "columns:2/stride=3", "--epsilon", "0.2"]),
        pytest.param(True, ["--tau", "3"], marks=pytest.mark.slow),
        pytest.param(True, ["--hard"], marks=pytest.mark.slow),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_export_is_checked_as_it_was_asked_for(tmp_path, ending, soft, asked):
    cc.write_votes(some_votes(soft=soft), tmp_path / "votes", shard_size=5)
    path = tmp_path / f"certs{ending}"
    made = costcert("certify", tmp_path / "votes", "-p", "1,shape:101/010", *asked, "-o", path)
    assert made.exit_code == 0, made.output
    ask = ["check", path, "--votes", tmp_path / "votes", "--all"]
    result = costcert(*ask)
    assert (result.exit_code, "all alike" in result.stdout) == (0, True), result.output
    asked_for = [
        f"ties {'lowest' if '--ties' in asked else 'against'}",
        *(["epsilon 0.2"] if "--epsilon" in asked else []),
        *(["tau 3"] if "--tau" in asked else []),
    ]
    question = next(line for line in result.stdout.splitlines() if line.startswith("Question: "))
    assert question.endswith(f" ballots, {', '.join(asked_for)}"), question
    assert f"{path} is as it was written, " in result.stdout
    few = costcert(*ask[:-1], "--sample", 3).stdout
    assert "certificates again, of 3 of 12 images; --sample and --all choose how many" in few
    assert few.index("Deriving ") < few.index("derived again")
    alone = costcert("check", path)
    assert (alone.exit_code, "pass --votes" in alone.stdout) == (0, True), alone.output
    assert "leave --ablation out" in costcert(*ask, "--ablation", "columns:2").stderr


def test_a_csv_needs_the_manifest_beside_it(folders):
    path = folders / "certs.csv"
    assert costcert("certify", folders / "votes", "-p", "1,2", "-o", path).exit_code == 0
    beside = folders / "certs.csv.manifest.json"
    beside.rename(folders / "elsewhere.json")
    says = f"{beside} is not there, which certify writes next to {path}"
    result = costcert("check", path, "--votes", folders / "votes")
    assert (result.exit_code, says in " ".join(result.stderr.split())) == (2, True), result.output
    with pytest.raises(cc.CostcertError, match="keep both files together, or certify again"):
        cc.read_certificates(path)


def test_an_export_of_an_archive_can_be_checked(tmp_path):
    votes = some_votes()
    np.savez(tmp_path / "votes.npz", truth=votes.truth, ballots=votes.ballots)
    world = ["--ablation", "columns:2", "--classes", 4, "--image-size", "3x8"]
    path = tmp_path / "certs.csv"
    assert costcert("certify", tmp_path / "votes.npz", *world, "-p", "2", "-o", path).exit_code == 0
    ask = ["check", path, "--votes", tmp_path / "votes.npz", "--all"]
    assert "60 derived again" in costcert(*ask, *world).stdout
    assert "certificates cannot vouch for themselves: pass --abl" in costcert(*ask).stderr


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda text: "", "cannot be read as .csv"),
        (lambda text: text.replace("min_k", "maxk", 1), "is damaged"),
        (lambda text: text[: text.rindex("\n", 0, -1) + 1], "certificates, expected 120"),
        (lambda text: text.replace("costcert,square:1,", "costcert,square:1,x", 1), "cannot be read as .csv"),
        (lambda text: text.replace('"costcert"', '"nobody"').replace("costcert,", "nobody,"), "nobody"),
        (lambda text: text + "a,b\n", "cannot be read as .csv"),
    ],
)
def test_a_damaged_export_gets_one_sentence(folders, damage, says):
    path = folders / "certs.csv"
    assert costcert("certify", folders / "votes", "-p", "1,2", "-o", path).exit_code == 0
    path.write_text(damage(path.read_text().replace('"', "")))
    result = costcert("check", path, "--votes", folders / "votes")
    assert result.exit_code in (1, 2), result.output
    assert says in result.output
    assert "Traceback" not in result.output
    alone = costcert("check", path)
    assert (alone.exit_code != 0, "Traceback" in alone.output) == (True, False), alone.output
    with pytest.raises(cc.CostcertError):
        cc.read_certificates(path)


def unsealed(folder):
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    plain = {key: value for key, value in content.items() if not key.endswith("_digests")}
    del plain["manifest_digest"]
    path.write_text(json.dumps(plain))


def test_old_folders_certify_and_are_said_to_have_no_digests(folders, tmp_path):
    before = (folders / "certs" / "manifest.json").read_bytes()
    unsealed(folders / "votes")
    again = costcert("certify", folders / "votes", "-p", "1,2", "-o", tmp_path / "again")
    assert again.exit_code == 0, again.output
    # The digest of votes is the same, recorded or not.
    assert (tmp_path / "again" / "manifest.json").read_bytes() == before
    result = checked(folders)
    assert (result.exit_code, "votes has none; it was made by an older version" in result.stdout) == (0, True)
    unsealed(folders / "certs")
    assert "certs has none" in checked(folders).stdout


def test_a_damaged_folder_without_digests_is_still_derived_again(folders):
    unsealed(folders / "certs")
    change(folders / "certs" / "shard-00000.parquet", "min_k", 2, lambda min_k: min_k % 4 + 1)
    assert checked(folders, "--all").exit_code == 1


def test_a_second_run_seals_what_it_completes_and_keeps_other_digests(folders):
    manifest = folders / "votes" / "manifest.json"
    before, when = manifest.read_bytes(), manifest.stat().st_mtime_ns
    cc.write_votes(some_votes(), folders / "votes", shard_size=5)
    assert (manifest.read_bytes(), manifest.stat().st_mtime_ns) == (before, when)
    (folders / "votes" / "shard-00001.parquet").unlink()
    # The second run does not adopt damaged shards as its own.
    change(folders / "votes" / "shard-00000.parquet", "truth", 1, lambda truth: (truth + 1) % 4)
    with pytest.raises(CostcertError, match=r"shard-00000.parquet differs from what is to be written"):
        cc.write_votes(some_votes(), folders / "votes", shard_size=5)
    assert "shards are missing" in checked(folders).stderr
    cc.write_votes(some_votes(), folders / "votes", shard_size=5, overwrite=True)
    assert manifest.read_bytes() == before
    assert checked(folders).exit_code == 0


def test_a_probe_added_later_leaves_a_sealed_folder_sealed(tmp_path):
    ask = {"model": Tiny(), "data": pictures(), "ablation": "columns:3", "out": tmp_path / "votes"}
    vote(**ask, shard_size=4)
    vote(**ask, probe=True)
    found = chain.verify_digests(tmp_path / "votes")
    assert (found.sealed, found.problems) == (True, [])
    assert found.digest == VotesFolder(tmp_path / "votes").digest()


@pytest.mark.parametrize(
    ("damage", "args", "says"),
    [
        (lambda f: None, ["--all", "--sample", "3"], "pass one of them"),
        (lambda f: None, ["--replay", "3"], "pass --votes, --model and --data"),
        (lambda f: (f / "certs" / "manifest.json").unlink(), [], "holds no manifest.json"),
        (lambda f: (f / "certs" / "manifest.json").write_text("{}"), [], "damaged, or not of this version"),
        (lambda f: (f / "certs" / "manifest.json").write_text("["), [], "cannot be checked"),
        (lambda f: (f / "certs" / "shard-00001.parquet").unlink(), [], "1 of its 3 shards are missing"),
        (lambda f: (f / "votes" / "shard-00001.parquet").unlink(), [], "1 of its 3 shards are missing"),
        (lambda f: (f / "votes").rename(f / "elsewhere"), [], "votes is not there"),
        (
            lambda f: resealed(f / "certs", patches=["triangle:1", "square:2"]),
            [],
            "expected a certificate of 0, costcert, triangle:1",
        ),
        (
            lambda f: resealed(f / "certs", defenders=["nobody"] * 5),
            [],
            "expected one certificate per defender and patch",
        ),
        (lambda f: resealed(f / "certs", defenders="all"), [], "expected one certificate per defender"),
        (
            lambda f: resealed(f / "certs", classifier=classifier_with(f / "certs", ablation="columns:3")),
            [],
            "columns:3 is certified, but mutants of columns:2 voted",
        ),
    ],
)
def test_bad_input_gets_one_sentence_and_never_passes(folders, damage, args, says):
    damage(folders)
    result = checked(folders, *args)
    assert result.exit_code in (1, 2), result.output
    assert says in result.output
    assert "Traceback" not in result.output


def passes(folders, votes="votes"):
    """Whether check finds nothing wrong; bad input is a sentence, anything else would be a traceback."""
    try:
        return run(CheckOptions(folders / "certs", votes=votes and folders / votes, sample=2))
    except CostcertError:
        return False


def test_every_flipped_byte_is_noticed(folders):
    """Any bit of any byte of any file, 400 times."""
    files = sorted(path for name in ("certs", "votes") for path in (folders / name).iterdir())
    assert len(files) == 8
    rng = random.Random(11)
    for flip in range(400):
        path = files[flip % len(files)]
        content = path.read_bytes()
        place, bit = rng.randrange(len(content)), 1 << rng.randrange(8)
        path.write_bytes(content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :])
        assert not passes(folders), (path, place, bit)
        if flip < 16:
            assert checked(folders).exit_code in (1, 2)
        path.write_bytes(content)
    assert passes(folders)


def test_every_byte_of_a_manifest_counts(folders):
    path = folders / "certs" / "manifest.json"
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert not passes(folders, votes=None), place
    for other in (content[:-1], content + b" ", content.replace(b"\n", b"\r\n")):
        path.write_bytes(other)
        assert not passes(folders, votes=None)


# The same bytes, however they are computed.


@pytest.mark.parametrize("soft", [False, True])
def test_threads_and_shards_do_not_change_a_certificate(monkeypatch, soft):
    votes = some_votes(200, soft=soft)
    expected = cc.certify(votes, [1, 2]).to_pandas()
    for threads, step in product((1, 2, 7), (1, 64, 200)):
        monkeypatch.setattr(compiled, "cores", lambda threads=threads: threads)
        parts = [votes.take(slice(start, start + step)) for start in range(0, 200, step)]
        found = cc.Certificates.joined([cc.certify(part, [1, 2]) for part in parts])
        assert found.to_pandas().equals(expected), (threads, step)


@pytest.mark.slow
def test_one_core_and_two_write_the_same_bytes(tmp_path):
    if not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs a system with two cores, and with a way to use one of them")
    cc.write_votes(some_votes(300), tmp_path / "votes", shard_size=100)
    script = (
        "import os, sys\nos.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:int(sys.argv[1])])\n"
        "from costcert.cli import main\nmain(sys.argv[2:])\n"
    )
    written = []
    for count in ("1", "2"):
        out = tmp_path / count
        ask = ["certify", str(tmp_path / "votes"), "-p", "1,2", "-o", str(out)]
        subprocess.run([sys.executable, "-c", script, count, *ask], check=True, capture_output=True)
        written.append({path.name: path.read_bytes() for path in out.iterdir()})
    assert written[0] == written[1]
    assert len(written[0]) == 4


class Noisy(Tiny):
    """All mutants vote for label 1, but the last one is nearly tied between 0 and 1.

    The first logit rises a little with the number of mutants that are evaluated at once.
    """

    def logits(self, images, regions):
        answers = np.zeros((len(images), len(regions), self.num_classes), dtype=np.float32)
        answers[..., 1] = [1.0003 if region.columns.start == 7 else 9 for region in regions]
        answers[..., 0] = 1 + 1e-5 * len(images) * len(regions)
        return answers


def test_an_uncertain_mutant_changes_a_certificate_and_epsilon_covers_it():
    """Evaluated one image at a time, one mutant votes otherwise than with eight, and a certificate is lost.

    Certificates that count this mutant as touched hold for both.
    """
    data, patch = pictures(8, seed=2), "rectangle:1x3"
    together = vote(Noisy(), data, "columns:1", probe=True)
    single = [vote(Noisy(), Subset(data, [image], "one"), "columns:1") for image in range(8)]
    world = {"num_classes": 4, "ablation": "columns:1", "image_size": (6, 8)}
    margins = np.concatenate([votes.margins for votes in single])
    ballots = np.concatenate([votes.ballots for votes in single])
    alone = cc.Votes(ballots, data.labels, margins=margins, **world)
    other = together.ballots != alone.ballots
    assert other.sum(axis=0).tolist() == [0] * 7 + [8]
    epsilon = together.provenance["probe"]["epsilon"]
    careless = [cc.certify(votes, patch).min_k("costcert", patch) for votes in (alone, together)]
    assert (data.labels == 1).any()
    assert [set(min_k[data.labels == 1]) for min_k in careless] == [{1}, {2}]
    for votes in (alone, together):
        assert (votes.margins[other] <= epsilon).all()
        careful = cc.certify(votes, patch, epsilon=epsilon).min_k("costcert", patch)
        assert (careful >= np.maximum(*careless)).all()


@pytest.fixture(scope="module")
def sample_votes(tmp_path_factory):
    """Votes of the network that comes with the package, probed, and certificates of them."""
    torch = pytest.importorskip("torch", reason="the sample's network needs costcert[models]")
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("sample")
    model = Path(cc.__file__).parent / "sample" / "model"
    ask = ["--model", model, "--data", "sample", "--limit", 40, "--probe", "--device", "cpu"]
    made = costcert("vote", *ask, "--out", folder / "votes")
    assert made.exit_code == 0, made.output
    made = costcert("certify", folder / "votes", "-p", "2", "--epsilon", "probe", "--out", folder / "certs")
    assert made.exit_code == 0, made.output
    return folder, model


def test_the_same_network_votes_the_same_again(sample_votes):
    folder, model = sample_votes
    result = checked(folder, "--model", model, "--data", "sample", "--replay", 5)
    assert result.exit_code == 0, result.output
    assert "has those that voted" in result.stdout
    assert "Replay: 140 mutants of 5 images evaluated again; no problems" in result.stdout


def test_ballots_that_the_network_never_cast_are_noticed(sample_votes, tmp_path):
    folder, model = sample_votes
    votes = cc.read_votes(folder / "votes")
    forged = np.where(np.arange(28) == 3, (votes.ballots + 1) % 10, votes.ballots)
    cc.write_votes(votes.replace(ballots=forged), tmp_path / "votes")
    made = costcert("certify", tmp_path / "votes", "-p", "2", "-o", tmp_path / "certs")
    assert made.exit_code == 0, made.output
    # The certificates follow from the ballots; only the replay detects that the network did not cast them.
    result = checked(tmp_path, "--model", model, "--data", "sample", "--replay", 4)
    assert result.exit_code == 1
    assert "of them differ, but" not in result.stdout
    assert result.stdout.count("mutant 3: voted") == 4


def test_other_weights_are_noticed(sample_votes, tmp_path):
    import torch

    from costcert.models.architectures import build
    from costcert.models.preprocessing import Preprocessing
    from costcert.models.saved import ModelCard, save_model

    folder, _ = sample_votes
    torch.manual_seed(1)
    pixels = Preprocessing((28, 28), channels=1, mean=(0.5,), std=(0.5,))
    network = build("strip:small", num_classes=10, ablation="columns:4", preprocessing=pixels).mutants.network
    save_model(tmp_path / "model", network, ModelCard("strip:small", 10, pixels, "columns:4", "crop"))
    result = checked(folder, "--model", tmp_path / "model")
    assert (result.exit_code, "is not the model that cast these votes" in result.stdout) == (1, True), (
        result.output
    )


@pytest.mark.parametrize(
    ("batch_size", "threads"), [(1, 1), *(pytest.param(64, n, marks=pytest.mark.slow) for n in (1, 2))]
)
def test_ballots_of_a_real_network_flip_within_the_probe_or_not_at_all(sample_votes, batch_size, threads):
    """Only labels are compared: margins may move by more than a probe of a few mutants measured."""
    import torch

    folder, model = sample_votes
    stored = cc.read_votes(folder / "votes")
    data = limited(cc.parse_dataset("sample"), 10)
    rows = [stored.image_ids.tolist().index(name) for name in data.ids]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        again = vote(cc.load_model(model, device="cpu", batch_size=batch_size), data, stored.ablation)
    finally:
        torch.set_num_threads(before)
    margins, other = stored.margins[rows], again.ballots != stored.ballots[rows]
    epsilon, moved = stored.provenance["probe"]["epsilon"], np.abs(again.margins - margins)[~other].max()
    print(
        f"{other.sum()} of {other.size} flips; margins moved by up to {moved:.2g}, epsilon is {epsilon:.2g}"
    )
    assert (margins[other] <= epsilon).all()


def test_kept_regions_mean_the_same_to_both():
    """The pixels of a wrapping mutant, by hand."""
    assert check.mutants("columns:3", 2, 5)[4] == (0b10011, 0b10011)
    assert Segment(4, 3).pixels(5).tolist() == [True, True, False, False, True]
    assert check.touched("columns:3", "square:1", 2, 5) == [0b00111 << 0, 0b01110, 0b10011, 0b11001, 0b11100]


def test_builtin_defenders_are_all_checked():
    from costcert.defenders import BUILTIN

    assert set(BUILTIN) == set(check.DEFENDERS)
