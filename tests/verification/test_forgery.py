"""A forger who can write to a folder can seal it again. Everything that a forger could change is tried here.

Certificates alone: `check --votes` derives them again from the votes, which alone describe themselves. Votes,
with certificates that follow from them: `check --replay` evaluates the model on the images again, and excuses
a difference only by its own measurements. docs/soundness.md has the list.
"""

import hashlib
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import costcert as cc
from command_line import invoke
from costcert.store.files import manifest_text, without_digests
from costcert.verification.digests import rows_digest
from costcert.votes.collector import VoteCollector
from costcert.votes.probe import SAFETY
from places import ROOT
from sealing import manifest_of, seal

DOCUMENT = ROOT / "docs" / "soundness.md"
IMAGES = 6
# One image of the first shard is not in the first place: its rank can be forged for the better.
SEED = 8
PROBE = {"epsilon": 1e-3, "tau": 80}
# Recorded for information only; no certificate depends on it.
FOR_PEOPLE = {
    "certificates": ("costcert",),
    "votes": (
        "made.versions",
        "made.model.name",
        "made.probe.mutants",
        "made.probe.flips",
        "made.probe.shifts",
    ),
}


def costcert(*args):
    return invoke([str(arg) for arg in args])


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """Soft votes of the bundled network, and certificates of them, without any forgery."""
    torch = pytest.importorskip("torch", reason="the sample's network needs costcert[models]")
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("honest")
    ask = ["--model", MODEL, "--data", "sample", "--limit", IMAGES, "--seed", SEED]
    ask += ["--ablation", "columns:4/stride=4"]
    made = costcert("vote", *ask, "--soft", "0.5,3", "--probe", "--shard-size", 4, "--out", folder / "votes")
    assert made.exit_code == 0, made.output
    # Each replay measures anew, on more images: these values allow for whatever it measures.
    content = manifest_of(folder / "votes")
    seal(folder / "votes", changed(content, ("made", "probe"), {**content["made"]["probe"], **PROBE}))
    certify(folder, "--epsilon", "0.05", "--tau", 4000)
    assert max(pq.read_table(folder / "certs" / "shard-00000.parquet")["rank"].to_pylist()) > 1
    assert checked(folder).exit_code == 0
    found = replayed(folder)
    assert found.exit_code == 0, found.output
    return folder


MODEL = Path(cc.__file__).parent / "sample" / "model"


def certify(folder, *more):
    made = costcert("certify", folder / "votes", "-p", "2,rectangle:1x9", *more, "-o", folder / "certs")
    assert made.exit_code == 0, made.output


def checked(folder, *more):
    return costcert("check", folder / "certs", "--votes", folder / "votes", "--all", *more)


def replayed(folder):
    return checked(folder, "--model", MODEL, "--data", "sample", "--replay", IMAGES)


@pytest.fixture
def folder(honest, tmp_path):
    shutil.copytree(honest / "votes", tmp_path / "votes")
    shutil.copytree(honest / "certs", tmp_path / "certs")
    return tmp_path


def leaves(content, path=()):
    """Every value of a manifest, as a path of keys."""
    if isinstance(content, dict) and content:
        for key, value in content.items():
            yield from leaves(value, (*path, key))
    else:
        yield path


def others(value):
    """Values that a forger might replace this one by."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1, -value - 1, value / 2, 0, None, str(value)]
    if isinstance(value, str):
        return [value + "x", "", None, "columns:5/stride=4" if value.startswith("columns") else "square:1"]
    if isinstance(value, list):
        return [value[:-1], [*value, value[-1]] if value else ["x"], value[::-1]]
    return ["x", 0, {}, -1]


def changed(content, path, value):
    if not path:
        return value
    return {**content, path[0]: changed(content[path[0]], path[1:], value)}


def without(content, path):
    if len(path) == 1:
        return {key: value for key, value in content.items() if key != path[0]}
    return {**content, path[0]: without(content[path[0]], path[1:])}


def at(content, path):
    return content if not path else at(content[path[0]], path[1:])


def forgeries(content):
    """Every field changed to something else, and every field left out."""
    for path in leaves(content):
        if path[0] not in ("shard_digests", "manifest_digest"):
            old = at(content, path)
            for value in others(old):
                if value != old:
                    yield path, changed(content, path, value)
            yield path, without(content, path)


def is_for_people(path, kind):
    return any((".".join(path) + ".").startswith(prefix + ".") for prefix in FOR_PEOPLE[kind])


@pytest.mark.slow
def test_every_field_of_certificates(folder):
    """A changed field is detected, or the certificates are correct for the changed question."""
    honest, stored = manifest_of(folder / "certs"), cc.read_certificates(folder / "certs")
    votes = cc.read_votes(folder / "votes")
    tried = accepted = 0
    for path, forged in forgeries(honest):
        seal(folder / "certs", forged)
        tried += 1
        if checked(folder).exit_code == 0 and not is_for_people(path, "certificates"):
            assert path in (("epsilon",), ("tau",)), path
            again = cc.certify(
                votes, stored.patches, stored.defenders, epsilon=forged["epsilon"], tau=forged["tau"]
            )
            for key in stored.keys:
                assert (again.rank(*key) == stored.rank(*key)).all()
                assert (again.min_k(*key) == stored.min_k(*key)).all()
            accepted += 1
    assert tried > 200
    assert accepted < 5


@pytest.mark.parametrize(
    "tau", [-6000, 1.5, *(pytest.param(tau, marks=pytest.mark.slow) for tau in (-1, True, "0", None))]
)
def test_a_tau_that_is_none(folder, tau):
    seal(folder / "certs", {**manifest_of(folder / "certs"), "tau": tau})
    result = checked(folder)
    assert result.exit_code != 0
    assert "tau" in result.output


def test_a_cap_that_the_votes_do_not_have(folder):
    """A smaller cap takes units from the attacker; the digest that would detect it is removed, too."""
    content = manifest_of(folder / "certs")
    for digest in (content["votes_digest"], None):
        forged = changed(content, ("classifier", "soft", "cap"), 40000)
        forged = changed(forged, ("votes", "classifier", "soft", "cap"), 40000)
        seal(folder / "certs", {**forged, "votes_digest": digest})
        assert checked(folder).exit_code == 1


def test_a_cap_that_an_archive_does_not_have(tmp_path):
    rng = np.random.default_rng(1)
    truth, labels = rng.integers(0, 4, 20), rng.integers(0, 4, (20, 8, 2))
    labels[:, :6, 0] = truth[:, None]
    units = np.broadcast_to([70, 10], (20, 8, 2))
    np.savez(tmp_path / "votes.npz", truth=truth, labels=labels, units=units, cap=100)
    world = ["--ablation", "columns:2", "--classes", 4, "--image-size", "3x8"]
    made = costcert("certify", tmp_path / "votes.npz", *world, "-p", "1", "-o", tmp_path / "certs")
    assert made.exit_code == 0, made.output
    ask = ["check", tmp_path / "certs", "--votes", tmp_path / "votes.npz", "--all"]
    assert costcert(*ask, *world).exit_code == 0
    assert "pass --ablation, --classes, --image-size" in costcert(*ask).stderr
    honest = manifest_of(tmp_path / "certs")
    for kind, name, value in (
        ("soft", "cap", 80),
        ("soft", "best", 1),
        (None, "ablation", "columns:1"),
        (None, "hide", "zero"),
    ):
        forged = honest
        for where in (("classifier",), ("votes", "classifier")):
            path = (*where, kind, name) if kind else (*where, name)
            forged = changed(forged, path, value)
        seal(tmp_path / "certs", forged)
        result = costcert(*ask, *world)
        assert result.exit_code != 0, (name, result.output)
    for name, value in (("num_classes", 5), ("image_size", [8, 8]), ("images", 19)):
        seal(tmp_path / "certs", changed(honest, ("votes", name), value))
        assert costcert(*ask, *world).exit_code == 1, name


@pytest.fixture
def masked(tmp_path):
    """Hard votes of masks and certificates of PatchCleanser, without any forgery."""
    rng = np.random.default_rng(2)
    truth = rng.integers(0, 4, IMAGES)
    ballots = np.where(rng.random((IMAGES, 45)) < 0.95, truth[:, None], rng.integers(0, 4, (IMAGES, 45)))
    ballots[::2] = truth[::2, None]
    votes = cc.Votes(ballots, truth, num_classes=4, ablation="masks:3/patch=2", image_size=(8, 9))
    cc.write_votes(votes, tmp_path / "votes", shard_size=4)
    made = costcert("certify", tmp_path / "votes", "-p", "1,2", "-o", tmp_path / "certs")
    assert made.exit_code == 0, made.output
    assert checked(tmp_path).exit_code == 0
    assert set(cc.read_certificates(tmp_path / "certs").min_k("patchcleanser", 2).tolist()) > {1}
    return tmp_path


@pytest.mark.parametrize("better", ["rank", "min_k"])
def test_better_certificates_of_masks(masked, better):
    shard = masked / "certs" / "shard-00000.parquet"
    rewrite(shard, **{better: lambda values: [value % 4 + 1 for value in values]})
    seal(masked / "certs")
    result = checked(masked)
    assert (result.exit_code, "derived rank" in result.output) == (1, True), result.output


@pytest.mark.parametrize(
    ("where", "value", "says"),
    [
        (("classifier", "ablation"), "masks:3/patch=3", "is certified, but mutants of masks:3/patch=2 voted"),
        (("classifier", "ablation"), "masks:2/patch=2", "is certified, but mutants of masks:3/patch=2 voted"),
        (("classifier", "ablation"), "columns:2", "is certified, but mutants of masks:3/patch=2 voted"),
        (("classifier", "mask"), "square:2", "a mask that none of the defenders uses"),
        (("classifier", "ties"), "nobody's", "such certificates do not exist"),
        (("patches",), ["square:1", "square:3"], "expected a certificate of 0, patchcleanser, square:3"),
        (("defenders",), ["costcert"], "expected a certificate of 0, costcert, square:1"),
    ],
)
def test_another_question_about_masks(masked, where, value, says):
    seal(masked / "certs", changed(manifest_of(masked / "certs"), where, value))
    result = checked(masked)
    assert result.exit_code != 0
    assert says in result.output


@pytest.mark.parametrize("patch", ["square:3", "rectangle:1x4", "2*square:1"])
def test_certificates_against_a_patch_that_the_masks_do_not_cover(masked, patch):
    for shard in sorted((masked / "certs").glob("*.parquet")):
        rewrite(shard, patch=lambda values: [patch if value == "square:2" else value for value in values])
    seal(masked / "certs", {**manifest_of(masked / "certs"), "patches": ["square:1", patch]})
    result = checked(masked)
    assert (result.exit_code, "do not cover the patch" in result.output) == (2, True), result.output


def test_masks_that_the_votes_do_not_have(masked):
    """Votes are forged to be of masks for a larger patch; their digest no longer is the one that is noted."""
    path = ("classifier", "ablation")
    seal(masked / "votes", changed(manifest_of(masked / "votes"), path, "masks:3/patch=3"))
    content = changed(manifest_of(masked / "certs"), path, "masks:3/patch=3")
    seal(masked / "certs", changed(content, ("votes", *path), "masks:3/patch=3"))
    result = checked(masked)
    assert (result.exit_code, "digests differ" in result.output) == (1, True), result.output


def rewrite(path, **columns):
    """Rewrite columns of a shard by functions."""
    table = pq.read_table(path)
    for name, by in columns.items():
        values = pa.array(by(table.column(name).to_pylist()), table.schema.field(name).type)
        table = table.set_column(table.column_names.index(name), name, values)
    pq.write_table(table, path)


def in_rows(path, by):
    pq.write_table(by(pq.read_table(path)), path)


BETTER = {
    "image_id": lambda values: [*values[1:], values[0]],
    "defender": lambda values: values[::-1],
    "patch": lambda values: values[::-1],
    "rank": lambda values: [1] * len(values),
    "min_k": lambda values: [1] * len(values),
}


@pytest.mark.parametrize("column", BETTER)
def test_every_column_of_certificates(folder, column):
    shard = folder / "certs" / "shard-00000.parquet"
    assert pq.read_table(shard).column_names == list(BETTER)
    rewrite(shard, **{column: BETTER[column]})
    seal(folder / "certs")
    assert checked(folder).exit_code == 1


@pytest.mark.parametrize(
    "by",
    [
        lambda table: table.slice(0, len(table) - 1),
        lambda table: pa.concat_tables([table, table.slice(0, 1)]),
        lambda table: table.take(list(range(len(table)))[::-1]),
        lambda table: pa.concat_tables([table.slice(0, 1)] * len(table)),
        lambda table: table.drop_columns(["min_k"]),
    ],
    ids=["one less", "one more", "backwards", "the first for all", "no min-k"],
)
def test_order_and_number_of_certificates(folder, by):
    in_rows(folder / "certs" / "shard-00000.parquet", by)
    seal(folder / "certs")
    assert checked(folder).exit_code != 0


def test_swapped_and_repeated_shards(folder):
    one, other = (folder / "certs" / f"shard-0000{n}.parquet" for n in range(2))
    first, second = one.read_bytes(), other.read_bytes()
    for mine, theirs in ((second, first), (first, first)):
        one.write_bytes(mine), other.write_bytes(theirs)
        seal(folder / "certs")
        assert checked(folder).exit_code != 0


# The same in one file, where a forger writes the digest of the rows again.


@pytest.fixture
def export(folder):
    """The honest certificates as a .json; the other formats hold the same rows and the same manifest."""
    certificates = cc.read_certificates(folder / "certs")
    cc.write_certificates(certificates, folder / "certs.json", votes=folder / "votes")
    return folder / "certs.json"


def forge(path, rows, manifest):
    content = json.loads(path.read_text())
    digest = rows_digest([row[name] for row in rows] for name in BETTER) if rows else "none"
    text = manifest_text({**without_digests(manifest), "shard_digests": {"rows": digest}})
    sealed = {**json.loads(text), "manifest_digest": hashlib.sha256(text.encode()).hexdigest()}
    path.write_text(json.dumps({**content, "certificates": rows, "manifest": sealed}))


def checked_export(path):
    return costcert("check", path, "--votes", path.parent / "votes", "--all")


@pytest.mark.parametrize("column", BETTER)
def test_every_column_of_an_export(export, column):
    content = json.loads(export.read_text())
    assert checked_export(export).exit_code == 0
    values = BETTER[column]([row[column] for row in content["certificates"]])
    rows = [{**row, column: value} for row, value in zip(content["certificates"], values, strict=True)]
    forge(export, rows, content["manifest"])
    result = checked_export(export)
    assert (result.exit_code, "not those that were written" in result.output) == (1, False), result.output


@pytest.mark.parametrize(
    "by",
    [
        lambda rows: rows[:-1],
        lambda rows: [*rows, rows[0]],
        lambda rows: rows[::-1],
        lambda rows: [rows[0]] * len(rows),
        lambda rows: [],
    ],
    ids=["one less", "one more", "backwards", "the first for all", "none"],
)
def test_order_and_number_of_rows_of_an_export(export, by):
    content = json.loads(export.read_text())
    forge(export, by(content["certificates"]), content["manifest"])
    assert checked_export(export).exit_code != 0


@pytest.mark.slow
def test_every_field_of_an_export(export):
    content = json.loads(export.read_text())
    tried = 0
    for path, forged in forgeries(content["manifest"]):
        forge(export, content["certificates"], forged)
        tried += 1
        if checked_export(export).exit_code == 0 and not is_for_people(path, "certificates"):
            assert path in (("epsilon",), ("tau",)), path
    assert tried > 200


# Votes, with certificates that follow from them.


def certified_anew(folder):
    """Certify the current votes again; whether that worked."""
    shutil.rmtree(folder / "certs")
    made = costcert("certify", folder / "votes", "-p", "2", "-o", folder / "certs")
    return made.exit_code == 0


def allows_for(forged, measured):
    """Whether the recorded probe allows for what a replay has seen, which is less than what it measured."""
    noted = forged["made"]["probe"]
    return all(
        isinstance(noted.get(name), int | float) and noted[name] >= measured[name] / SAFETY for name in PROBE
    )


@pytest.mark.slow
def test_every_field_of_votes(folder, monkeypatch):
    honest, measured = manifest_of(folder / "votes"), {}
    probe = VoteCollector.probe
    monkeypatch.setattr(VoteCollector, "probe", lambda self: measured.update(probe(self)) or dict(measured))
    refused = noticed = 0
    for path, forged in forgeries(honest):
        if is_for_people(path, "votes"):
            continue
        seal(folder / "votes", forged)
        if not certified_anew(folder):
            (folder / "certs").mkdir(exist_ok=True)
            refused += 1
            continue
        result = replayed(folder)
        if path[:2] == ("made", "probe") and allows_for(forged, measured):
            assert result.exit_code == 0, (path, at(forged, path[:-1]), result.output)
            continue
        assert result.exit_code != 0, (path, at(forged, path[:-1]), result.output)
        noticed += 1
    assert refused > 20
    assert noticed > 20


@pytest.mark.parametrize("name", ["tau", pytest.param("epsilon", marks=pytest.mark.slow)])
def test_a_probe_that_allows_for_less_than_a_replay_sees(folder, name, monkeypatch):
    probe = VoteCollector.probe
    for seen, found in ((PROBE[name], 0), (1.1 * PROBE[name], 1)):
        measured = {name: SAFETY * seen}
        monkeypatch.setattr(VoteCollector, "probe", lambda self, measured=measured: probe(self) | measured)
        result = replayed(folder)
        assert result.exit_code == found, result.output
    assert f"the recorded probe allows for {name}" in result.output


def all_for_the_truth(votes):
    units = np.zeros_like(votes.units)
    units[..., 0] = votes.cap
    labels = np.broadcast_to(votes.truth[:, None, None], votes.labels.shape)
    return {"labels": labels, "units": units}


def some(votes, value):
    mask = np.zeros(votes.ballots.shape, bool)
    mask[0, 0] = True
    return np.where(mask, value, votes.ballots)


VOTES = {
    "units for the truth": all_for_the_truth,
    "units of one ballot": lambda v: {
        "units": np.where(np.arange(v.units.size).reshape(v.units.shape) == 0, 0, v.units)
    },
    "labels of soft ballots": lambda v: {"labels": (v.labels + 1) % 10},
    "one hard ballot": lambda v: {"ballots": some(v, (v.ballots + 1) % 10)},
    "all ballots, with margins that excuse them": lambda v: {
        "ballots": np.broadcast_to(v.truth[:, None], v.ballots.shape),
        "margins": np.zeros_like(v.margins),
        "cuts": np.zeros_like(v.cuts),
        **all_for_the_truth(v),
    },
    "margins": lambda v: {"margins": v.margins + 1},
    "cuts": lambda v: {"cuts": v.cuts + 1},
    "truth": lambda v: {"truth": (v.truth + 1) % 10},
    "unread": lambda v: {"unread": np.arange(len(v)) == 1},
    "ids": lambda v: {"image_ids": np.roll(v.image_ids, 1)},
}


# One of them per kind of column: a replay takes a second.
ESSENTIAL = {"one hard ballot", "units of one ballot", "truth"}


@pytest.mark.parametrize(
    "forge",
    [
        pytest.param(forge, id=name, marks=[] if name in ESSENTIAL else pytest.mark.slow)
        for name, forge in VOTES.items()
    ],
)
def test_every_column_of_votes(folder, forge):
    votes = cc.read_votes(folder / "votes")
    cc.write_votes(votes.replace(**forge(votes)), folder / "votes", shard_size=4, overwrite=True)
    assert certified_anew(folder)
    assert checked(folder).exit_code == 0, "these certificates follow from these votes"
    result = replayed(folder)
    assert result.exit_code == 1, result.output


@pytest.mark.parametrize(
    "images",
    [[0, 1, 2, 3, 4], [1, 0, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5, 5]],
    ids=["one left out", "another order", "one twice"],
)
def test_order_and_number_of_votes(folder, images):
    votes = cc.read_votes(folder / "votes").take(images)
    names = [f"{name}" for name in votes.image_ids]
    if len(set(names)) < len(names):
        # Writing an image twice in one shard is refused; in two shards it needs a forgery.
        cc.write_votes(
            votes.replace(image_ids=[*names[:-1], "again"]), folder / "votes", shard_size=4, overwrite=True
        )
        rewrite(folder / "votes" / "shard-00001.parquet", image_id=lambda ids: [*ids[:-2], ids[0], ids[0]])
        seal(folder / "votes")
        assert not certified_anew(folder)
        return
    cc.write_votes(votes, folder / "votes", shard_size=4, overwrite=True)
    assert certified_anew(folder)
    assert replayed(folder).exit_code == 1


def test_an_image_in_two_shards_is_noticed(folder):
    first = pq.read_table(folder / "votes" / "shard-00000.parquet").slice(0, 1)
    rest = pq.read_table(folder / "votes" / "shard-00001.parquet").slice(1)
    pq.write_table(pa.concat_tables([first, rest]), folder / "votes" / "shard-00001.parquet")
    seal(folder / "votes")
    assert certified_anew(folder)
    result = checked(folder)
    assert (result.exit_code, "more than once" in result.stdout) == (1, True)


@pytest.mark.slow
def test_honest_adaptive_votes_are_found_honest(tmp_path):
    """Mutants that were never evaluated are not compared."""
    pytest.importorskip("torch", reason="the sample's network needs costcert[models]")
    ask = ["--model", MODEL, "--data", "sample", "--limit", IMAGES, "--adaptive", "--patch", "2", "--k", "1"]
    assert costcert("vote", *ask, "--out", tmp_path / "votes").exit_code == 0
    assert cc.read_votes(tmp_path / "votes").known is not None
    assert certified_anew_at(tmp_path)
    result = replayed(tmp_path)
    assert result.exit_code == 0, result.output
    # If they are marked as known, they are compared.
    votes = cc.read_votes(tmp_path / "votes")
    cc.write_votes(votes.replace(known=None), tmp_path / "votes", overwrite=True)
    assert certified_anew(tmp_path)
    result = replayed(tmp_path)
    assert result.exit_code == 1, result.output


def certified_anew_at(folder):
    (folder / "certs").mkdir()
    return certified_anew(folder)


def test_the_document_lists_every_field(honest):
    """docs/soundness.md lists every field and column that a forger could change."""
    text = DOCUMENT.read_text()
    text = text[text.index("## What a forger could change") :]
    listed = set(re.findall(r"`([\w.]+)`", text))
    for kind in ("certs", "votes"):
        for path in leaves(manifest_of(honest / kind)):
            prefixes = {".".join(path[:n]) for n in range(1, len(path) + 1)}
            assert prefixes & listed, f"{'.'.join(path)} of {kind} is not listed"
        for name in pq.read_schema(honest / kind / "shard-00000.parquet").names:
            assert name in listed, f"the column {name} of {kind} is not listed"
    for names in FOR_PEOPLE.values():
        assert set(names) <= listed
