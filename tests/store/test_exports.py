"""Certificates in one file: read wherever a folder is, and refused wherever a folder would be."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import costcert as cc
from command_line import invoke
from costcert.errors import CostcertError
from costcert.reports.results import read_results
from costcert.store.exports import Export, RowsDigest, manifest_beside
from costcert.store.files import sealed_content, without_digests
from costcert.store.runs import open_run
from costcert.store.sources import open_certificates
from costcert.verification.digests import rows_digest

ENDINGS = (".parquet", ".csv", ".json")
HOW = {"ablation": "columns:3", "num_classes": 5, "image_size": (4, 12)}


def some_votes(seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 5, 20)
    right = rng.random((20, 12)) < 0.7
    ballots = np.where(right, truth[:, None], rng.integers(0, 5, (20, 12)))
    return cc.Votes(ballots, truth, image_ids=[f'0{n}, "é"\n' for n in range(20)], **HOW)


def costcert(*args):
    return invoke([str(arg) for arg in args])


@pytest.fixture
def votes(tmp_path):
    """Votes in a folder of three shards, and in a file that does not describe them."""
    cc.write_votes(some_votes(), tmp_path / "votes", shard_size=8)
    many = some_votes()
    np.savez(tmp_path / "plain.npz", ballots=many.ballots, truth=many.truth, image_ids=many.image_ids)
    return tmp_path


def manifest_in(path):
    if path.suffix == ".csv":
        return json.loads(manifest_beside(path).read_text())
    if path.suffix == ".json":
        return json.loads(path.read_text())["manifest"]
    return json.loads(pq.read_metadata(path).metadata[b"costcert"])


def put_manifest(path, manifest):
    if path.suffix == ".csv":
        manifest_beside(path).write_text(json.dumps(manifest))
    elif path.suffix == ".json":
        path.write_text(json.dumps({**json.loads(path.read_text()), "manifest": manifest}))
    else:
        rows = pq.read_table(path).replace_schema_metadata({"costcert": json.dumps(manifest)})
        pq.write_table(rows, path)


def resealed(path, **changes):
    content = manifest_in(path)
    put_manifest(path, sealed_content({**without_digests(content), **changes}, content["shard_digests"]))


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_holds_what_a_folder_holds(votes, ending):
    path, folder = votes / f"certs{ending}", votes / "certs"
    for out in (path, folder):
        made = costcert("certify", votes / "votes", "-p", "1,2", "--ties", "lowest", "-o", out)
        assert made.exit_code == 0, made.output
    one, other = cc.read_certificates(path), cc.read_certificates(folder)
    assert one.to_pandas().equals(other.to_pandas())
    assert (one.classifier, one.metadata) == (other.classifier, other.metadata)
    assert open_certificates(path).manifest == open_certificates(folder).manifest
    cc.write_certificates(other, votes / f"again{ending}", votes=votes / "votes")
    assert cc.read_certificates(votes / f"again{ending}").to_pandas().equals(one.to_pandas())
    assert open_run(path).votes.digest() == open_run(folder).votes.digest()
    counted = [
        read_results(each, votes=given, name="run").to_json()
        for each in (path, folder)
        for given in (None, votes / "votes")
    ]
    assert all(each == counted[0] for each in counted)
    with pytest.raises(CostcertError, match="exists: choose another name, or pass overwrite=True"):
        cc.write_certificates(other, path)
    cc.write_certificates(other.select(slice(0, 3)), path, overwrite=True)
    assert len(cc.read_certificates(path)) == 3


@pytest.mark.parametrize("ending", [*ENDINGS, ""])
def test_votes_in_a_file_that_only_certificates_describe(votes, ending):
    """Their digest shows that they are the bytes that were certified."""
    path, plain = votes / f"certs{ending}", votes / "plain.npz"
    how = ["--ablation", "columns:3", "--classes", 5, "--image-size", "4x12"]
    made = costcert("certify", plain, *how, "-p", "2", "-o", path)
    assert made.exit_code == 0, made.output
    run = open_run(path, plain)
    assert (run.votes.num_images, run.votes.image_size) == (20, (4, 12))
    by_class = read_results(path, votes=plain).by_class
    assert by_class.images.tolist() == np.bincount(some_votes().truth, minlength=5).tolist()
    checked = costcert("check", path, "--votes", plain, "--all", *how)
    assert (checked.exit_code, "all alike" in checked.stdout) == (0, True), checked.output
    # Other options than those of certify are refused, and check believes no certificate.
    for option in ({"ablation": "rows:3"}, {"classes": 6}, {"image_size": 12}):
        with pytest.raises(CostcertError):
            open_run(path, plain, **option)
    assert "certificates cannot vouch for themselves" in costcert("check", path, "--votes", plain).stderr
    wrong = costcert("check", path, "--votes", plain, "--all", *how[:3], 6, *how[4:])
    assert wrong.exit_code != 0


@pytest.mark.parametrize("form", [".npz", ".parquet", ".json"])
def test_votes_that_describe_themselves_need_no_options(tmp_path, form):
    path = tmp_path / f"votes{form}"
    cc.write_votes(some_votes(), path)
    made = costcert("certify", path, "-p", "2", "--ablation", "columns:3/stride=2", "-o", tmp_path / "c.csv")
    assert made.exit_code == 0, made.output
    checked = costcert("check", tmp_path / "c.csv", "--votes", path, "--all")
    assert (checked.exit_code, "all alike" in checked.stdout) == (0, True), checked.output
    expected = cc.certify(some_votes().select("columns:3/stride=2"), 2)
    assert cc.read_certificates(tmp_path / "c.csv").to_pandas().equals(expected.to_pandas())
    again = costcert("check", tmp_path / "c.csv", "--votes", path, "--classes", 6)
    assert "records num_classes 5, but --classes is 6" in again.stderr


@pytest.mark.parametrize("ending", ENDINGS)
def test_certificates_of_other_votes_are_never_shown(votes, ending):
    path = votes / f"certs{ending}"
    cc.write_certificates(cc.certify(some_votes(), 2), path, votes=votes / "votes")
    others = []
    for name in ("others", "others.npz", "others.parquet", "others.json"):
        cc.write_votes(some_votes(1), votes / name)
        others.append(votes / name)
    ballots = some_votes().ballots
    (votes / "others.csv").write_text(
        ",".join(["truth", *(f"ballot_{n}" for n in range(12))])
        + "\n"
        + "\n".join(
            ",".join(map(str, [truth, *row])) for truth, row in zip(some_votes().truth, ballots, strict=True)
        )
    )
    for other in [*others, votes / "others.csv"]:
        with pytest.raises(CostcertError, match="their digests differ"):
            open_run(path, other)
        with pytest.raises(CostcertError, match="their digests differ"):
            read_results(path, votes=other)
        report = costcert("report", path, "--votes", other, "-o", votes / "report.html")
        assert (report.exit_code, (votes / "report.html").exists()) == (2, False), report.output
    assert open_run(path).certificates.num_classes == 5
    # As with a folder, certificates that do not name their votes are not shown with any.
    cc.write_certificates(cc.certify(some_votes(), 2), path, overwrite=True)
    with pytest.raises(CostcertError, match="does not record the digest of its votes"):
        open_run(path)


@pytest.mark.parametrize(
    "ending", [".csv", *(pytest.param(ending, marks=pytest.mark.slow) for ending in (".json", ".parquet"))]
)
def test_a_changed_file_is_refused_as_a_changed_folder_is(votes, ending):
    path = votes / f"certs{ending}"
    cc.write_certificates(cc.certify(some_votes(), [1, 2]), path, votes=votes / "votes")
    good, described = path.read_bytes(), manifest_in(path)
    changes = {
        "a cell": lambda: path.write_bytes(one_cell_changed(path)),
        "its manifest": lambda: put_manifest(path, {**described, "tau": 1}),
        "the digest of its manifest": lambda: put_manifest(path, {**described, "manifest_digest": "0" * 64}),
        "no digests": lambda: put_manifest(path, without_digests(described)),
        "no manifest": lambda: put_manifest(path, {}),
        "a list": lambda: put_manifest(path, [1]),
        "another kind": lambda: resealed(path, format="costcert votes"),
        "another version": lambda: resealed(path, version=1),
        "fewer defenders": lambda: resealed(path, defenders=described["defenders"][:-1]),
        "more images": lambda: resealed(path, votes={**described["votes"], "images": 21}),
        "no votes": lambda: resealed(path, votes=None),
        "no classes": lambda: resealed(path, votes={**described["votes"], "num_classes": 0}),
    }
    for what, change in changes.items():
        change()
        with pytest.raises(CostcertError) as caught:
            cc.read_certificates(path)
        assert "\n" not in str(caught.value), what
        with pytest.raises(CostcertError):
            read_results(path)
        result = costcert("check", path, "--votes", votes / "votes", "--all")
        # As with a folder, those of older versions are derived again, and said to have no digests.
        assert (result.exit_code == 0) == (what == "no digests"), (what, result.output)
        assert ("has none" in result.output) == (what == "no digests"), (what, result.output)
        path.write_bytes(good)
        put_manifest(path, described)
    assert costcert("check", path, "--votes", votes / "votes", "--all").exit_code == 0


def one_cell_changed(path):
    if path.suffix == ".parquet":
        metadata = pq.read_metadata(path).metadata[b"costcert"]
        table = pq.read_table(path)
        rank = table.column("min_k").to_pylist()
        rank[3] = 1 if rank[3] != 1 else 2
        table = table.set_column(table.column_names.index("min_k"), "min_k", pa.array(rank, pa.int32()))
        pq.write_table(table.replace_schema_metadata({"costcert": metadata}), path)
        return path.read_bytes()
    text = path.read_text()
    return text.replace("costcert", "drs", 1).encode()


def test_certificates_of_other_images_in_a_later_block_are_refused(tmp_path):
    """Every defender's block of rows is about the same images, in the same order."""
    for path in (tmp_path / "certs", tmp_path / "certs.json"):
        cc.write_certificates(cc.certify(some_votes(), 2, ["costcert", "cbn"]), path)
    content = json.loads((tmp_path / "certs.json").read_text())
    rows = content["certificates"]
    rows[20]["image_id"], rows[21]["image_id"] = rows[21]["image_id"], rows[20]["image_id"]
    digest = RowsDigest().add(pa.Table.from_pylist(rows)).hexdigest()
    content["manifest"] = sealed_content(without_digests(content["manifest"]), {"rows": digest})
    (tmp_path / "certs.json").write_text(json.dumps(content))
    with pytest.raises(CostcertError, match="does not fit its manifest"):
        cc.read_certificates(tmp_path / "certs.json")


def test_the_digest_of_rows_is_derived_twice(votes):
    """By the code that writes and by the code that checks, and over any number of parts."""
    rows = pa.table(
        {
            "image_id": ["a\nb", 'é"', "", "1"],
            "defender": ["x"] * 4,
            "patch": ["square:2"] * 4,
            "rank": [1, 2, 3, 4],
            "min_k": [4, 5, 6, 2**40],
        }
    )
    whole = RowsDigest().add(rows).hexdigest()
    assert RowsDigest().add(rows.slice(0, 1)).add(rows.slice(1)).hexdigest() == whole
    assert rows_digest(rows.column(name).to_pylist() for name in rows.column_names) == whole


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_export_that_fails_leaves_nothing(tmp_path, ending):
    path = tmp_path / f"certs{ending}"
    certificates = cc.certify(some_votes(), 2)

    def interrupted():
        with Export(path, {"format": "costcert certificates"}) as export:
            export.add(certificates)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not list(tmp_path.iterdir())


def test_a_csv_beside_the_manifest_of_another_run(tmp_path):
    """As after a copy of one of the two files, or a power failure between them."""
    for seed, name in ((0, "a"), (1, "b")):
        cc.write_certificates(cc.certify(some_votes(seed), 2), tmp_path / f"{name}.csv")
    (tmp_path / "a.csv").replace(tmp_path / "b.csv")
    with pytest.raises(CostcertError, match="is not the file that was sealed"):
        cc.read_certificates(tmp_path / "b.csv")


@pytest.mark.slow
def test_a_report_of_a_file(votes):
    pytest.importorskip("jinja2", reason="the page needs costcert[report]")
    path = votes / "certs.csv"
    assert costcert("certify", votes / "votes", "-p", "2", "-o", path).exit_code == 0
    result = costcert("report", path, "--votes", votes / "votes", "-o", votes / "report.html")
    assert result.exit_code == 0, result.output
    assert "typical" in (votes / "report.html").read_text()
    for wrong in (votes / "plain.npz", votes / "missing.csv", votes / "certs.csv.manifest.json"):
        result = costcert("report", wrong, "-o", votes / "other.md")
        assert (result.exit_code, "Traceback" in result.output) == (2, False), result.output
        assert not (votes / "other.md").exists()
