"""Random, mutated and hostile input: one sentence each, never a traceback, a hang or a wrong success.

Everything is drawn from fixed seeds, and inputs are counted.
"""

import io
import json
import pickle
import random
import string
import struct
import time
import zipfile
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import costcert as cc
import costcert.store.parquet as store_parquet
import costcert.store.tables as store_tables
from costcert.cli.check import CheckOptions, check
from costcert.errors import CostcertError
from costcert.geometry.ablations import parse_ablation
from costcert.geometry.patches import parse_patch
from costcert.geometry.touch import touched
from costcert.reports.results import read_results
from costcert.store.certificates import CertificatesFolder
from costcert.store.runs import open_run
from costcert.store.vote_files import VotesFile
from costcert.store.votes import VotesFolder

WORLD = {"ablation": "columns:3", "num_classes": 5, "image_size": (4, 12)}
# The most seconds of computing for one input, whatever else the machine does; a hang would take far longer.
PATIENCE = 20
WORLD = {"ablation": "columns:3", "num_classes": 5, "image_size": (4, 12)}
CASES = Counter()


@pytest.fixture(scope="module", autouse=True)
def counted():
    yield
    print(f"\nfuzzing: {CASES['refused']:,} inputs refused and {CASES['taken']:,} taken")


def refused(work, *args, **more):
    """The error sentence, or None if the input was accepted. Any other exception fails the test."""
    start, said = time.process_time(), None
    try:
        work(*args, **more)
    except CostcertError as error:
        said = str(error)
    assert time.process_time() - start < PATIENCE
    assert said is None or (said.strip() and "\n" not in said)
    CASES["taken" if said is None else "refused"] += 1
    return said


def mutated(content, rng):
    """The same bytes with a few random changes: flips, cuts, holes, repeats, zeros and random bytes."""
    content = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 5, 20])):
        place = rng.randrange(len(content) + 1)
        length = min(rng.choice([1, 4, 16, 200]), len(content) - place)
        accident = rng.randrange(6)
        if accident == 0 and length:
            content[place] ^= 1 << rng.randrange(8)
        elif accident == 1:
            del content[place : place + length]
        elif accident == 2:
            content[place:place] = content[place : place + length]
        elif accident == 3:
            content[place : place + length] = bytes(length)
        elif accident == 4:
            content[place : place + length] = rng.randbytes(length)
        elif place:
            del content[place:]
    return bytes(content)


def hard_votes(count=12):
    rng = np.random.default_rng(3)
    truth = rng.integers(0, 5, count)
    return cc.Votes(rng.integers(0, 5, (count, 12)), truth, margins=rng.random((count, 12)), **WORLD)


def archive(path):
    return VotesFile(path, **WORLD).shard(0)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_mutated_archives_are_refused_or_unharmed(tmp_path, save):
    rng, votes, path = random.Random(1), hard_votes(), tmp_path / "votes.npz"
    save(path, ballots=votes.ballots, truth=votes.truth)
    content, refusals = path.read_bytes(), 0
    for _ in range(600):
        path.write_bytes(mutated(content, rng))
        refusals += refused(archive, path) is not None
    assert 300 < refusals <= 600


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_archives_of_strange_arrays(tmp_path):
    """Arrays of any shape and type are refused unless they are valid votes."""
    rng, path = np.random.default_rng(2), tmp_path / "votes.npz"
    types = ["int8", "int64", "uint64", "float32", "float64", "bool", "complex64", "U3", "S2", "M8[s]", "V4"]
    taken = 0
    for _ in range(400):
        arrays = {}
        for name in rng.permutation(["ballots", "truth", "margins", "labels", "units", "cap", "image_ids"])[
            :4
        ]:
            shape = tuple(int(side) for side in rng.integers(0, 13, rng.integers(0, 4)))
            kind = types[rng.integers(len(types))]
            size = int(np.prod(shape)) * np.dtype(kind).itemsize
            arrays[name] = np.frombuffer(rng.bytes(size), dtype=kind).reshape(shape)
        if rng.random() < 0.2:
            good = hard_votes(3)
            arrays = {"ballots": good.ballots, "truth": good.truth} | {
                name: arrays[name] for name in arrays if name in ("margins", "image_ids")
            }
        np.savez(path, **arrays)
        if refused(archive, path) is None:
            taken += 1
            found = archive(path)
            assert 0 <= found.ballots.min() <= found.ballots.max() < 5
    assert 0 < taken < 400


class Trap:
    """A pickle that runs code as soon as it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_no_pickle_is_ever_opened(tmp_path):
    """An .npz, a .npy and a plain pickle that would write a file when they are loaded."""
    sprung, trap = tmp_path / "sprung", Trap(tmp_path / "sprung")
    pickle.loads(pickle.dumps(trap)).close()
    assert sprung.exists(), "the trap works"
    sprung.unlink()
    np.savez(tmp_path / "a.npz", ballots=np.array([trap], object), truth=np.zeros(1, int))
    np.save(tmp_path / "b.npy", np.array([trap], object), allow_pickle=True)
    (tmp_path / "c.npz").write_bytes(pickle.dumps(trap))
    for name in ("a.npz", "b.npy", "c.npz"):
        assert refused(archive, tmp_path / name)
        assert refused(cc.parse_dataset, f"npz:{tmp_path / name}")
    assert not sprung.exists()


def test_a_zip_bomb_is_refused(tmp_path):
    """A few kilobytes that claim to be petabytes, or unpack to more than fits into memory."""
    header = b"\x93NUMPY\x01\x00"
    text = b"{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000, 1000000), }"
    text += b" " * (118 - len(text) - 1) + b"\n"
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w") as bomb:
        for name in ("ballots.npy", "truth.npy"):
            bomb.writestr(name, header + struct.pack("<H", len(text)) + text)
    assert refused(archive, path)


def test_archives_and_tables_that_unpack_to_too_much(tmp_path, monkeypatch):
    """The limits are compared with what a file claims, before anything is unpacked."""
    monkeypatch.setattr(store_parquet, "MOST_BYTES", 1000)
    monkeypatch.setattr(store_tables, "MOST_VALUES", 100)
    np.savez_compressed(tmp_path / "v.npz", ballots=np.zeros((1000, 12), int), truth=np.zeros(1000, int))
    table = pa.table({"truth": [0] * 1000, "ballots": pa.array([[0] * 12] * 1000)})
    pq.write_table(table, tmp_path / "v.parquet")
    assert "cannot be read as .npz" in refused(archive, tmp_path / "v.npz")
    assert "cannot be read as .parquet" in refused(archive, tmp_path / "v.parquet")
    np.savez_compressed(tmp_path / "v.npz", ballots=np.zeros((1, 12), int), truth=[0], images=np.zeros(10**6))
    assert refused(archive, tmp_path / "v.npz") is None, "other arrays are not unpacked"


def as_csv(votes):
    names = ["image_id", "truth", *(f"ballot_{n}" for n in range(12))]
    rows = zip(votes.image_ids, votes.truth, votes.ballots, strict=True)
    return "\n".join([",".join(names), *(",".join(map(str, [a, b, *c])) for a, b, c in rows)]).encode()


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".json"])
def test_mutated_tables_of_votes_are_refused_or_well_formed(tmp_path, ending):
    rng, path = random.Random(9), tmp_path / f"votes{ending}"
    if ending == ".csv":
        path.write_bytes(as_csv(hard_votes()))
    else:
        cc.write_votes(hard_votes(), path)
    content, refusals = path.read_bytes(), 0
    assert refused(archive, path) is None
    for _ in range(400):
        path.write_bytes(mutated(content, rng))
        said = refused(archive, path)
        refusals += said is not None
        if said is None:
            found = archive(path)
            assert 0 <= found.ballots.min() <= found.ballots.max() < 5
            assert found.ballots.shape[1:] == (12,)
    assert refusals > 100


@pytest.mark.parametrize("ending", [pytest.param(".parquet", marks=pytest.mark.slow), ".csv", ".json"])
def test_mutated_files_of_certificates_are_refused_or_unharmed(tmp_path, ending):
    rng, path = random.Random(10), tmp_path / f"certs{ending}"
    certificates = cc.certify(hard_votes(), [1, 2])
    cc.write_certificates(certificates, path)
    content, refusals = path.read_bytes(), 0
    for _ in range(400):
        path.write_bytes(mutated(content, rng))
        said = refused(cc.read_certificates, path)
        refusals += said is not None
        if said is None:
            assert cc.read_certificates(path).to_pandas().equals(certificates.to_pandas())
    assert refusals > 200


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".json", ".npz"])
def test_files_of_anything(tmp_path, ending):
    """Random bytes, and content that is valid JSON but nothing that was expected."""
    rng, path = random.Random(11), tmp_path / f"any{ending}"
    texts = [json.dumps(each).encode() for each in (JUNK, {}, {"votes": JUNK}, {"certificates": JUNK})]
    texts += [json.dumps({"votes": each, "certificates": each}).encode() for each in JUNK]
    texts += [b"[" * 100_000, b'{"votes": [' + b'{"ballots": ' * 5000, b"\xff\xfe", b"1" * 10_000]
    texts += [rng.randbytes(rng.randrange(300)) for _ in range(100)]
    for text in texts:
        path.write_bytes(text)
        (tmp_path / f"any{ending}.manifest.json").write_bytes(text)
        for read in (archive, cc.read_certificates, open_run, read_results):
            assert refused(read, path) is not None, text[:50]
        assert not passes(path)


@pytest.fixture
def folders(tmp_path):
    cc.write_votes(hard_votes(), tmp_path / "votes", shard_size=5)
    certificates = cc.certify(hard_votes(), [1, 2])
    cc.write_certificates(certificates, tmp_path / "certs", votes=tmp_path / "votes")
    return tmp_path


def votes_of(folder):
    source = VotesFolder(folder)
    return [source.shard(number) for number in range(min(source.num_shards, 5))]


def certificates_of(folder):
    return list(CertificatesFolder(folder).shards())


@pytest.mark.parametrize(("name", "read"), [("votes", votes_of), ("certs", certificates_of)])
def test_mutated_parquet_is_refused_or_well_formed(folders, name, read):
    """Parquet has checksums for few bytes, so a reader may accept changed numbers; check detects these."""
    rng, path = random.Random(4), folders / name / "shard-00000.parquet"
    content, refusals = path.read_bytes(), 0
    for _ in range(700):
        path.write_bytes(mutated(content, rng))
        said = refused(read, folders / name)
        refusals += said is not None
        if said is None and path.read_bytes() != content:
            assert not passes(folders / "certs", folders / "votes")
    assert refusals > 300


def passes(certificates, votes=None):
    try:
        return check(CheckOptions(certificates, votes=votes, sample=1))
    except CostcertError:
        return False


JUNK = [
    None,
    True,
    -1,
    0,
    3,
    1e300,
    float("nan"),
    "",
    "x",
    "columns:3",
    [],
    [1],
    [4, 12],
    {},
    {"cap": 2},
    10**30,
]


@pytest.mark.parametrize(("name", "read"), [("votes", votes_of), ("certs", certificates_of)])
def test_manifests_of_anything(folders, name, read):
    """Every entry, also nested ones, replaced by values of every kind; and mutated text."""
    rng, path = random.Random(5), folders / name / "manifest.json"
    text = path.read_text()
    cases = 0
    for junk in JUNK:
        for keys in places(json.loads(text)):
            content = json.loads(text)
            inner = content
            for key in keys[:-1]:
                inner = inner[key]
            if inner[keys[-1]] == junk:
                continue
            inner[keys[-1]] = junk
            path.write_text(json.dumps(content))
            refused(read, folders / name)
            assert not passes(folders / "certs", folders / "votes"), (keys, junk)
            cases += 1
    for _ in range(300):
        path.write_bytes(mutated(text.encode(), rng))
        refused(read, folders / name)
        if path.read_text(errors="replace") != text:
            assert not passes(folders / "certs", folders / "votes")
        cases += 1
    print(f"{cases} manifests")
    assert cases > 500


def places(content, keys=()):
    """The paths of all entries in nested dicts, inner ones included."""
    for key, value in content.items():
        yield (*keys, key)
        if isinstance(value, dict):
            yield from places(value, (*keys, key))


@pytest.mark.slow
def test_manifests_without_digests_of_anything(folders):
    """Older folders have no digests to protect them: damage still gives sentences, not tracebacks."""
    paths = [folders / name / "manifest.json" for name in ("votes", "certs")]
    for path in paths:
        content = json.loads(path.read_text())
        plain = {
            key: value for key, value in content.items() if key not in ("shard_digests", "manifest_digest")
        }
        path.write_text(json.dumps(plain))
    for path in paths:
        text = path.read_text()
        for junk in JUNK:
            for keys in places(json.loads(text)):
                content = json.loads(text)
                inner = content
                for key in keys[:-1]:
                    inner = inner[key]
                inner[keys[-1]] = junk
                path.write_text(json.dumps(content))
                passes(folders / "certs", folders / "votes")
        path.write_text(text)
    assert passes(folders / "certs", folders / "votes")


ABLATIONS = ["columns:19", "rows:4/stride=2", "blocks:75/stride=10/wrap=no", "columns:4/span=4-24+rows:3"]
PATCHES = ["32", "square:32", "rectangle:16x64", "2%", "2/32", "shape:010/111", "2*square:16"]


@pytest.mark.parametrize(
    ("parse", "spellings"), [(parse_ablation, ABLATIONS), (parse_patch, PATCHES)], ids=["ablation", "patch"]
)
def test_mutated_spellings(parse, spellings):
    """A parsed value is spelled in a way that parses to the same value."""
    rng, alphabet, read = random.Random(6), string.printable + "²٣é%*:/=+-", 0
    for _ in range(4000):
        text = list(rng.choice(spellings))
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(len(text) + 1)
            text[place : place + rng.randint(0, 2)] = rng.choices(alphabet, k=rng.randint(0, 2))
        text = "".join(text)
        if refused(parse, text) is None:
            value = parse(text)
            assert parse(str(value)) == value, text
            read += 1
    assert 50 < read < 3500


@pytest.mark.parametrize(
    "spelling",
    [
        "9" * 5000,
        "columns:" + "9" * 5000,
        "+" * 10_000,
        "1*" * 5000,
        "shape:" + "1/" * 5000,
        "\0",
        "1*" * 3 + "1",
    ],
)
def test_spellings_out_of_all_proportion(spelling):
    for parse in (parse_ablation, parse_patch):
        assert refused(parse, spelling) is not None


def test_geometry_that_is_too_large_gets_a_sentence():
    """Geometry that would not fit into memory is refused before it is computed."""
    for ablation, patch, size in [
        ("columns:1", "4*square:1", 2000),
        ("blocks:1", "shape:101", 2000),
    ]:
        assert refused(touched, parse_ablation(ablation), parse_patch(patch), (size, size))


def test_mutated_images(tmp_path):
    """Each image is read, or refused by name; decompression bombs are refused before they are unpacked."""
    image = pytest.importorskip("PIL.Image", reason="images need pillow")
    rng, folder = random.Random(7), tmp_path / "images" / "a"
    folder.mkdir(parents=True)
    picture = image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8))
    unread = 0
    for kind in ("PNG", "JPEG", "BMP", "WEBP"):
        file = io.BytesIO()
        picture.save(file, kind)
        path = folder / f"x.{kind.lower()}"
        path.write_bytes(file.getvalue())
        data = cc.parse_dataset(f"folder:{tmp_path / 'images'}")
        assert len(data) == 1
        for _ in range(120):
            path.write_bytes(mutated(file.getvalue(), rng) or b"x")
            said = refused(data.image, 0)
            unread += said is not None
            assert said is None or path.name in said
        path.unlink()
    assert 50 < unread < 600


def test_mutated_checkpoints(tmp_path):
    """safetensors and weights-only torch files: the same weights, or a sentence; a pickle never runs."""
    torch = pytest.importorskip("torch", reason="checkpoints need costcert[models]")
    from safetensors.torch import save_file

    from costcert.models import checkpoints

    network = torch.nn.Linear(3, 2)
    rng, sprung = random.Random(8), tmp_path / "sprung"
    state = {name: value.clone() for name, value in network.state_dict().items()}
    save_file(state, tmp_path / "w.safetensors")
    torch.save(state, tmp_path / "w.pt")
    torch.save({"model": Trap(sprung)}, tmp_path / "trap.pt")
    (tmp_path / "trap.safetensors").write_bytes(pickle.dumps(Trap(sprung)))
    for name in ("trap.pt", "trap.safetensors"):
        assert refused(checkpoints.read_weights, tmp_path / name)
    assert not sprung.exists()
    for name in ("w.safetensors", "w.pt"):
        path = tmp_path / name
        content, refusals = path.read_bytes(), 0
        assert refused(checkpoints.read_weights, path) is None
        for _ in range(250):
            path.write_bytes(mutated(content, rng))
            refusals += refused(checkpoints.read_weights, path) is not None
        assert refusals > 50, name
