"""Datasets: stable ids and order, the right labels, and one sentence for every error."""

import gzip
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from costcert.datasets import files
from costcert.datasets.arrays import ArrayDataset
from costcert.datasets.base import UNREADABLE, Dataset, ImageError
from costcert.datasets.parse import parse_dataset
from costcert.datasets.subsets import limited, read_ids, with_ids
from costcert.errors import CostcertError
from costcert.votes.voting import vote
from tiny import Tiny

RNG = np.random.default_rng(5)
PIXELS = RNG.integers(0, 256, (7, 6, 5, 3), dtype=np.uint8)


def save(path, pixels=PIXELS[0]):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def test_a_folder_has_a_class_for_every_subfolder(tmp_path):
    save(tmp_path / "dog" / "b.png", PIXELS[1])
    save(tmp_path / "dog" / "a.PNG", PIXELS[2])
    save(tmp_path / "dog" / "more" / "deep.jpeg")
    save(tmp_path / "cat" / "a.png", PIXELS[3])
    save(tmp_path / ".git" / "x.png")
    save(tmp_path / "cat" / ".hidden.png")
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / "empty").mkdir()
    data = parse_dataset(f"folder:{tmp_path}")
    assert data.ids == ["cat/a.png", "dog/a.PNG", "dog/b.png", "dog/more/deep.jpeg"]
    assert data.class_names == ("cat", "dog", "empty")
    assert data.labels.tolist() == [0, 1, 1, 1]
    assert (len(data), data.num_classes, data.label(2), data.split) == (4, 3, 1, None)
    assert np.array_equal(np.asarray(data.image(2)), PIXELS[1])


def test_a_folder_of_splits_gives_the_split(tmp_path):
    save(tmp_path / "train" / "cat" / "a.png")
    save(tmp_path / "test" / "cat" / "b.png")
    assert parse_dataset(f"folder:{tmp_path}", "train").ids == ["cat/a.png"]
    data = parse_dataset(f"folder:{tmp_path}")
    assert (data.ids, data.split) == (["cat/b.png"], "test")
    with pytest.raises(CostcertError, match="holds test, train, but not 'val': name one"):
        parse_dataset(f"folder:{tmp_path}", "val")


def linked(path, target):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def test_links_to_folders_elsewhere_are_followed(tmp_path):
    save(tmp_path / "elsewhere" / "deep" / "x.png")
    save(tmp_path / "data" / "cat" / "a.png")
    linked(tmp_path / "data" / "cat" / "more", tmp_path / "elsewhere")
    linked(tmp_path / "data" / "dog", tmp_path / "elsewhere" / "deep")
    linked(tmp_path / "data" / "emu", tmp_path / "elsewhere")
    data = parse_dataset(f"folder:{tmp_path / 'data'}")
    # Two classes may hold the same images.
    assert data.ids == ["cat/a.png", "cat/more/deep/x.png", "dog/x.png", "emu/deep/x.png"]
    assert data.labels.tolist() == [0, 0, 1, 2]
    assert data.image(1).size == (5, 6)


@pytest.mark.parametrize(
    ("links", "adds"),
    [
        ({"cat/up": ".."}, []),
        ({"cat/up": "../.."}, []),
        ({"cat/again": "."}, []),
        ({"cat/itself": "itself"}, []),
        ({"cat/in/up": ".."}, []),
        ({"cat/in/up": "../..", "cat/up": "..", "dog/up": ".."}, []),
        ({"cat/one": "in", "cat/two": "in"}, []),
        ({"cat/in/over": "../on", "cat/on/back": "../in"}, []),
        ({"cat/to": "../dog", "dog/to": "../cat"}, ["cat/to/y.png", "dog/to/in/x.png", "dog/to/x.png"]),
        ({"back": "."}, []),
    ],
)
def test_cyclic_links_end(tmp_path, links, adds):
    root = tmp_path / "only" / "data"
    own = ["cat/in/x.png", "cat/x.png", "dog/y.png"]
    for name in own:
        save(root / name)
    for name, target in links.items():
        linked(root / name, target)
    data = parse_dataset(f"folder:{root}")
    assert sorted(data.ids) == sorted(own + adds)
    assert all(data.class_names[data.label(at)] == name.split("/")[0] for at, name in enumerate(data.ids))


def reachable(folder, root):
    """The slow twin: the real files that links and folders lead to, except back to the root."""
    real, below, todo = os.path.realpath, set(), [folder]
    while todo:
        here = real(todo.pop())
        if here == real(root) or here in below:
            continue
        below.add(here)
        todo += [entry.path for entry in os.scandir(here) if entry.is_dir()]
    return {real(entry) for here in below for entry in os.scandir(here) if entry.is_file()}


@pytest.mark.parametrize("seed", range(25))
def test_with_any_links_a_class_holds_each_image_once(tmp_path, seed):
    rng = np.random.default_rng(seed)
    root = tmp_path / "data"
    folders = [root / "a", root / "b", tmp_path / "elsewhere", root / "a" / "in", root / "b" / "in" / "deep"]
    for folder in folders:
        save(folder / "x.png")
    for number in range(12):
        target = [root, *folders][rng.integers(6)]
        linked(folders[rng.integers(5)] / f"{rng.integers(10)}{number}", target)
    data = parse_dataset(f"folder:{root}")
    for name in "ab":
        mine = [root / each for each in data.ids if each.startswith(f"{name}/")]
        assert sorted(map(os.path.realpath, mine)) == sorted(reachable(root / name, root))
    own = [path.relative_to(root).as_posix() for path in root.rglob("x.png") if path.resolve() == path]
    assert set(own) <= set(data.ids)
    assert data.ids == parse_dataset(f"folder:{root}").ids


def test_a_folder_that_cannot_be_listed_is_not_skipped_silently(tmp_path, monkeypatch):
    save(tmp_path / "cat" / "a.png")
    save(tmp_path / "dog" / "locked" / "b.png")
    scandir = os.scandir

    def refusing(path):
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr("os.scandir", refusing)
    with pytest.raises(CostcertError, match=r"cannot read the folder .*locked: permission denied"):
        parse_dataset(f"folder:{tmp_path}")


@pytest.mark.parametrize("damage", [b"no image at all", b"", None, "half"])
def test_a_corrupt_image_is_named(tmp_path, damage):
    path = save(tmp_path / "cat" / "bad.jpg", RNG.integers(0, 256, (90, 90, 3), dtype=np.uint8))
    data = parse_dataset(f"folder:{tmp_path}")
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:900] if damage == "half" else damage)
    with pytest.raises(ImageError, match=r"cat/bad\.jpg cannot be read as an image \(.+\)"):
        data.image(0)


def test_the_digest_tells_images_apart_and_nothing_else(tmp_path):
    save(tmp_path / "a" / "cat" / "x.png")
    save(tmp_path / "b" / "cat" / "x.png")
    one, two = (parse_dataset(f"folder:{tmp_path / name}") for name in "ab")
    assert one.digest() == two.digest()
    save(tmp_path / "b" / "cat" / "x.png", np.zeros((50, 50), np.uint8))
    assert one.digest() != two.digest()
    pixels = ArrayDataset("p", PIXELS, range(7))
    brighter = PIXELS.copy()
    brighter[3, 2, 2, 2] ^= 1
    digests = {
        data.digest()
        for data in (
            pixels,
            ArrayDataset("p", brighter, range(7)),
            ArrayDataset("p", PIXELS, [0] * 7),
            ArrayDataset("p", PIXELS, range(7), ids=list("abcdefg")),
        )
    }
    assert len(digests) == 4
    assert ArrayDataset("another name", PIXELS, range(7)).digest() in digests


def repaint(path):
    """Change one pixel of an uncompressed image in place, without changing the file's size or time."""
    before, content = path.stat(), bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


@pytest.mark.parametrize("kind", ["folder", "imagenet"])
def test_one_pixel_of_one_file_is_another_digest(tmp_path, kind):
    for synset in SYNSETS:
        for name in "ab":
            save(tmp_path / synset / f"{name}.ppm", PIXELS[1])
    before = parse_dataset(f"{kind}:{tmp_path}")
    digest = before.digest()
    assert parse_dataset(f"{kind}:{tmp_path}").digest() == digest
    repaint(tmp_path / SYNSETS[1] / "b.ppm")
    after = parse_dataset(f"{kind}:{tmp_path}")
    assert after.digest() != digest
    changed = [before.ids[at] for at in range(6) if before.fingerprint(at) != before.fingerprint(0)]
    assert changed == [f"{SYNSETS[1]}/b.ppm"]
    assert before.digest() == after.digest()
    assert limited(before, 6).digest() == after.digest()


def test_a_begun_run_is_not_completed_with_other_pictures(tmp_path):
    for number in range(4):
        save(tmp_path / "data" / "abcd"[number] / "x.pgm", PIXELS[number, ..., 0])
    out, words = tmp_path / "votes", f"folder:{tmp_path / 'data'}"
    vote(Tiny(), parse_dataset(words), "columns:3", out=out, shard_size=2)
    (out / "shard-00001.parquet").unlink()
    done = (out / "shard-00000.parquet").read_bytes()
    repaint(tmp_path / "data" / "a" / "x.pgm")
    with pytest.raises(CostcertError, match=r"holds another run: its made\.data\.digest is"):
        vote(Tiny(), parse_dataset(words), "columns:3", out=out)
    assert (out / "shard-00000.parquet").read_bytes() == done
    assert not (out / "shard-00001.parquet").exists()


def test_files_are_hashed_once_and_again_when_they_were_written_to(tmp_path, monkeypatch):
    for name in "abc":
        save(tmp_path / "cat" / f"{name}.ppm")
    read, sha256 = [], files._sha256
    monkeypatch.setattr(files, "_sha256", lambda path: (read.append(path.name), sha256(path))[1])
    data = parse_dataset(f"folder:{tmp_path}")
    first = data.digest()
    assert (data.digest(), limited(data, 2).metadata()["images"]) == (first, 2)
    assert sorted(read) == ["a.ppm", "b.ppm", "c.ppm"]
    # Longer than before, because time stamps of some file systems are coarse.
    (tmp_path / "cat" / "b.ppm").write_bytes(b"P6 of another length")
    assert data.digest() != first
    assert sorted(read) == ["a.ppm", "b.ppm", "b.ppm", "c.ppm"]


def test_a_file_that_cannot_be_read_has_a_fingerprint_of_its_own(tmp_path):
    for name in ("gone", "pipe", "there"):
        save(tmp_path / "cat" / f"{name}.png")
    (tmp_path / "cat" / "endless.png").symlink_to("/dev/zero")
    (tmp_path / "cat" / "itself.png").symlink_to("itself.png")
    data = parse_dataset(f"folder:{tmp_path}")
    whole = data.digest()
    (tmp_path / "cat" / "gone.png").unlink()
    (tmp_path / "cat" / "pipe.png").unlink()
    os.mkfifo(tmp_path / "cat" / "pipe.png")
    assert data.digest() != whole
    odd = [Path(data.ids[at]).stem for at in range(len(data)) if data.fingerprint(at) == UNREADABLE]
    assert odd == ["endless", "gone", "itself", "pipe"]


def test_a_store_is_read_once(tmp_path, monkeypatch):
    fsspec = pytest.importorskip("fsspec", reason="stores need fsspec")
    store = fsspec.filesystem("memory")
    content = save(tmp_path / "cat" / "a.ppm").read_bytes()
    read, sha256 = [], files._sha256
    monkeypatch.setattr(files, "_sha256", lambda path: (read.append(path.name), sha256(path))[1])
    digests = []
    for end in (content[-1], content[-1] ^ 1):
        store.pipe_file("/hashed/photos/cat/a.ppm", content[:-1] + bytes([end]))
        data = parse_dataset("folder:memory://hashed/photos")
        digests += [data.digest(), data.digest()]
    assert digests[:1] * 2 + digests[2:3] * 2 == digests
    assert digests[1] != digests[2]
    assert digests[0] == parse_dataset(f"folder:{tmp_path}").digest()
    assert read == ["a.ppm"] * 3


class Shown(Dataset):
    """A dataset that only implements `image`."""

    def __init__(self, *pictures):
        super().__init__("shown", [str(at) for at in range(len(pictures))], [0] * len(pictures))
        self.pictures, self.asked = pictures, 0

    def image(self, index):
        self.asked += 1
        if self.pictures[index] is None:
            raise ImageError("damaged")
        return self.pictures[index]


def test_a_dataset_without_fingerprints_is_identified_by_its_pixels(tmp_path):
    grey, coloured = (Image.fromarray(PIXELS[0, ..., 0]) for _ in range(2))
    coloured.putpalette([*range(256)] * 3)
    recoloured = coloured.copy()
    recoloured.putpalette([*range(255), 0] * 3)
    turned = Image.frombytes("L", grey.size[::-1], grey.tobytes())
    path = save(tmp_path / "half.png", RNG.integers(0, 256, (90, 90, 3), dtype=np.uint8))
    path.write_bytes(path.read_bytes()[:900])
    with Image.open(path) as half:
        data = Shown(grey, grey.copy(), turned, coloured, recoloured, None, half)
        prints = [data.fingerprint(at) for at in range(7)]
    assert prints[0] == prints[1]
    assert len(set(prints[1:6])) == 5
    assert prints[5:] == [UNREADABLE] * 2
    assert data.digest() == Shown(*data.pictures[:6], None).digest()
    # Decoding is slow, so it is done once.
    assert data.asked == 7


def test_a_picture_of_another_shape_is_another_picture():
    wide = ArrayDataset("p", PIXELS[:, :2, :3, 0], [0] * 7)
    tall = ArrayDataset("p", PIXELS[:, :2, :3, 0].reshape(7, 3, 2), [0] * 7)
    assert wide.digest() != tall.digest()


def digest_of_the_hub(monkeypatch, pixels, labels):
    rows = [{"x": Image.fromarray(each), "y": label} for each, label in zip(pixels, labels, strict=True)]
    features = {"x": feature("Image"), "y": feature("ClassLabel", names=["a", "b", "c"])}
    hub_with(Table(rows, **features), monkeypatch)
    return parse_dataset("hf:someone/clothes").digest()


def digest_of(kind, folder, pixels, labels, monkeypatch):
    """The digest of these grey images as a dataset of this kind."""
    if kind == "hf":
        return digest_of_the_hub(monkeypatch, pixels, labels)
    if kind == "npz":
        np.savez(folder / "d.npz", images=pixels, labels=labels)
        return parse_dataset(f"npz:{folder / 'd.npz'}").digest()
    if kind == "torchvision:GTSRB":
        images = folder / "gtsrb" / "GTSRB" / "Final_Test" / "Images"
        for at, each in enumerate(pixels):
            save(images / f"{at}.ppm", np.repeat(each[..., None], 3, axis=2))
        rows = [f"{at}.ppm;{label}\n" for at, label in enumerate(labels)]
        (folder / "gtsrb" / "GT-final_test.csv").write_text("Filename;ClassId\n" + "".join(rows))
        return parse_dataset(f"{kind}@{folder}").digest()
    raw = folder / "MNIST" / "raw" if kind == "torchvision:MNIST" else folder
    for stem in ("train", "t10k"):
        idx_file(raw / f"{stem}-images-idx3-ubyte", pixels, compress=False)
        idx_file(raw / f"{stem}-labels-idx1-ubyte", labels, compress=False)
    return parse_dataset(f"idx:{folder}" if kind == "idx" else f"{kind}@{folder}").digest()


@pytest.mark.parametrize("kind", ["npz", "idx", "hf", "torchvision:MNIST", "torchvision:GTSRB"])
def test_every_kind_of_data_tells_pixels_and_labels_apart(tmp_path, monkeypatch, kind):
    pixels, labels = PIXELS[:3, :, :, 0], [0, 2, 1]
    other = pixels.copy()
    other[1, 2, 3] ^= 1
    digests = []
    for number, given in enumerate(
        ((pixels, labels), (pixels, labels), (other, labels), (pixels, [0, 2, 2]))
    ):
        (tmp_path / str(number)).mkdir()
        digests.append(digest_of(kind, tmp_path / str(number), *given, monkeypatch))
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_npz(tmp_path):
    np.savez(tmp_path / "d.npz", images=PIXELS, labels=np.arange(7.0), ids=list("abcdefg"))
    data = parse_dataset(f"npz:{tmp_path / 'd.npz'}")
    assert (data.name, data.ids, data.num_classes, data.class_names) == (
        "npz:d.npz",
        list("abcdefg"),
        7,
        None,
    )
    assert np.array_equal(np.asarray(data.image(4)), PIXELS[4])
    np.savez(tmp_path / "grey.npz", images=PIXELS[..., :1], labels=[0] * 7, class_names=["a", "b"])
    grey = parse_dataset(f"npz:{tmp_path / 'grey.npz'}")
    assert (grey.image(0).mode, grey.class_names, grey.num_classes) == ("L", ("a", "b"), 2)
    assert grey.ids[6] == "00006"


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"images": PIXELS}, "holds no array 'labels', only images"),
        ({"images": PIXELS / 255, "labels": [0] * 7}, r"0 to 255 \(uint8\), got float64"),
        ({"images": PIXELS[..., :2], "labels": [0] * 7}, r"got \(7, 6, 5, 2\)"),
        ({"images": PIXELS[:, :0], "labels": [0] * 7}, "have no pixels"),
        ({"images": PIXELS, "labels": [0] * 6}, "has 7 images, but labels of shape"),
        ({"images": PIXELS, "labels": [0.5] * 7}, "must be integers, got 0.5"),
        ({"images": PIXELS, "labels": [-1] * 7}, r"\[0\] is -1"),
        ({"images": PIXELS, "labels": [2] * 7, "class_names": ["a", "b"]}, "2 classes are labelled 0 to 1"),
        ({"images": PIXELS, "labels": [0] * 7, "ids": ["a"] * 7}, "has two images with the same id"),
        ({"images": PIXELS, "labels": [0] * 7, "ids": ["a"]}, "has 7 images, but 1 ids"),
        ({"images": PIXELS[:0], "labels": []}, "holds no image"),
    ],
)
def test_an_npz_that_is_not_a_dataset(tmp_path, arrays, says):
    np.savez(tmp_path / "d.npz", **arrays)
    with pytest.raises(CostcertError, match=says):
        parse_dataset(f"npz:{tmp_path / 'd.npz'}")


def idx_file(path, values, compress=True):
    values = np.asarray(values, np.uint8)
    content = bytes((0, 0, 8, values.ndim))
    content += b"".join(size.to_bytes(4, "big") for size in values.shape) + values.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if compress else content)


@pytest.mark.parametrize("compress", [True, False])
def test_idx(tmp_path, compress):
    ending = ".gz" if compress else ""
    for stem, part in (("train", PIXELS[:5, ..., 0]), ("t10k", PIXELS[5:, ..., 0])):
        idx_file(tmp_path / f"{stem}-images-idx3-ubyte{ending}", part, compress)
        idx_file(tmp_path / f"{stem}-labels-idx1-ubyte{ending}", range(len(part)), compress)
    data = parse_dataset(f"idx:{tmp_path}")
    assert (data.ids, data.labels.tolist(), data.split) == (["t10k-00000", "t10k-00001"], [0, 1], "test")
    assert np.array_equal(np.asarray(data.image(1)), PIXELS[6, ..., 0])
    assert len(parse_dataset(f"idx:{tmp_path}", "train")) == 5
    with pytest.raises(CostcertError, match="has the splits train and test, got 'val'"):
        parse_dataset(f"idx:{tmp_path}", "val")
    images = tmp_path / f"t10k-images-idx3-ubyte{ending}"
    images.write_bytes(images.read_bytes()[:-20])
    with pytest.raises(CostcertError, match="cut short"):
        parse_dataset(f"idx:{tmp_path}")


def test_the_sample_comes_with_the_package_and_its_licence():
    from importlib.resources import files

    data = parse_dataset("sample")
    assert (len(data), data.num_classes, data.image(0).size) == (500, 10, (28, 28))
    assert np.bincount(data.labels).tolist() == [50] * 10
    assert data.class_names[9] == "Ankle boot"
    assert data.ids == sorted(data.ids)
    shipped = files("costcert") / "sample"
    assert "Zalando" in (shipped / "LICENSE.fashion-mnist.txt").read_text()
    assert len((shipped / "fashion_mnist.npz").read_bytes()) < 500_000


SYNSETS = ("n01440764", "n02119789", "n15075141")


def test_imagenet_folders_get_the_labels_every_classifier_uses(tmp_path):
    for synset in SYNSETS:
        save(tmp_path / "val" / synset / f"{synset}.png")
    save(tmp_path / "train" / SYNSETS[0] / "t.png")
    for path in (tmp_path, tmp_path / "val"):
        data = parse_dataset(f"imagenet:{path}")
        assert (data.labels.tolist(), data.num_classes) == ([0, 278, 999], 1000)
        assert data.class_names[278] == "kit fox, Vulpes macrotis"
    assert parse_dataset(f"imagenet:{tmp_path}", "train").ids == [f"{SYNSETS[0]}/t.png"]
    save(tmp_path / "val" / "cats" / "x.png")
    with pytest.raises(CostcertError, match="cats is not the name of a class of ImageNet-1k"):
        parse_dataset(f"imagenet:{tmp_path}")


def test_flat_imagenet_with_kaggles_list(tmp_path):
    folder = tmp_path / "ILSVRC" / "val"
    save(folder / "ILSVRC2012_val_00000002.png")
    save(folder / "ILSVRC2012_val_00000001.png")
    with pytest.raises(CostcertError, match="sort the images into one folder per class"):
        parse_dataset(f"imagenet:{folder}")
    (tmp_path / "LOC_val_solution.csv").write_text(
        "ImageId,PredictionString\n"
        "ILSVRC2012_val_00000001,n15075141 1 2 3 4 n15075141 5 6 7 8 \n"
        "ILSVRC2012_val_00000002,n01440764 1 2 3 4 \n"
    )
    assert parse_dataset(f"imagenet:{folder}").labels.tolist() == [999, 0]
    save(folder / "ILSVRC2012_val_00000003.png")
    with pytest.raises(CostcertError, match="does not list the image 'ILSVRC2012_val_00000003'"):
        parse_dataset(f"imagenet:{folder}")


def test_torchvision_names(tmp_path):
    raw = tmp_path / "FashionMNIST" / "raw"
    for stem in ("train", "t10k"):
        idx_file(raw / f"{stem}-images-idx3-ubyte", np.resize(PIXELS, (3, 28, 28)), compress=False)
        idx_file(raw / f"{stem}-labels-idx1-ubyte", [3, 1, 2], compress=False)
    data = parse_dataset(f"torchvision:FashionMNIST@{tmp_path}")
    assert (data.ids[1], data.labels.tolist(), data.split) == ("test-00001", [3, 1, 2], "test")
    assert data.class_names == parse_dataset("sample").class_names
    assert data.image(2).size == (28, 28)
    assert parse_dataset(f"torchvision:FashionMNIST@{tmp_path}", "train").ids[0] == "train-00000"
    with pytest.raises(CostcertError, match="has the splits train and test, got 'val'"):
        parse_dataset(f"torchvision:FashionMNIST@{tmp_path}", "val")


def test_torchvision_gtsrb_and_its_corrupt_image(tmp_path):
    images = tmp_path / "gtsrb" / "GTSRB" / "Final_Test" / "Images"
    save(images / "00000.ppm")
    (images / "00001.ppm").write_bytes(b"P6 broken")
    (tmp_path / "gtsrb" / "GT-final_test.csv").write_text("Filename;ClassId\n00000.ppm;16\n00001.ppm;42\n")
    data = parse_dataset(f"torchvision:GTSRB@{tmp_path}")
    assert (data.labels.tolist(), data.num_classes, data.class_names) == ([16, 42], 43, None)
    assert data.image(0).size == (5, 6)
    with pytest.raises(ImageError, match="test-00001 of torchvision:GTSRB cannot be read"):
        data.image(1)


@pytest.mark.parametrize("name", ["CIFAR100", "GTSRB", "FashionMNIST"])
def test_torchvision_data_that_is_not_there(tmp_path, name):
    with pytest.raises(CostcertError, match=f"torchvision:{name} .test. is not in .*; pass --download"):
        parse_dataset(f"torchvision:{name}@{tmp_path}")
    assert not any(tmp_path.rglob("*.*"))


def hub_with(table, monkeypatch):
    """A fake of the package `datasets`, with the two settings that keep it offline."""
    settings = {name: ModuleType(name) for name in ("datasets.config", "huggingface_hub.constants")}
    for name, module in settings.items():
        module.HF_HUB_OFFLINE = False
        monkeypatch.setitem(sys.modules, name, module)

    def load_dataset(name, *, split):
        if name == "absent":
            raise ConnectionError("cannot reach the hub\nand more")
        assert (name, split) == ("someone/clothes", "test")
        assert all(module.HF_HUB_OFFLINE for module in settings.values())
        return table

    module = ModuleType("datasets")
    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    return settings


class Table(list):
    """A table as in `datasets`: rows by number, columns by name."""

    def __init__(self, rows, **features):
        super().__init__(rows)
        self.features = features

    def __getitem__(self, key):
        return [row[key] for row in self] if isinstance(key, str) else super().__getitem__(key)


def feature(kind, **more):
    return type(kind, (), more)()


def test_the_hub(monkeypatch):
    rows = [{"picture": Image.fromarray(PIXELS[n]), "kind": n} for n in (1, 0)]
    features = {"picture": feature("Image"), "kind": feature("ClassLabel", names=["a", "b"])}
    hub_with(Table(rows, **features), monkeypatch)
    data = parse_dataset("hf:someone/clothes")
    assert (data.ids, data.labels.tolist()) == (["test-00000", "test-00001"], [1, 0])
    assert (data.class_names, data.image(0).size) == (("a", "b"), (5, 6))
    settings = hub_with(Table(rows, picture=feature("Image"), kind=feature("Value")), monkeypatch)
    with pytest.raises(CostcertError, match=r"one of class labels, got picture \(Image\), kind \(Value\)"):
        parse_dataset("hf:someone/clothes")
    with pytest.raises(
        CostcertError,
        match=r"cannot be loaded: cannot reach the hub; if .* never downloaded, pass --download",
    ):
        parse_dataset("hf:absent")
    assert not any(module.HF_HUB_OFFLINE for module in settings.values())


def test_the_hub_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(CostcertError, match="needs the package datasets: pip install datasets"):
        parse_dataset("hf:someone/clothes")


def test_another_package_adds_a_kind(monkeypatch):
    made = ArrayDataset("mine", PIXELS, range(7))
    point = SimpleNamespace(name="mine", load=lambda: lambda rest, split: made if rest == "x" else None)
    monkeypatch.setattr("costcert.datasets.parse.entry_points", lambda group: [point])
    assert parse_dataset("mine:x") is made


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("foldr:x", "unknown data 'foldr:x' .did you mean 'folder'"),
        ("folder", "unknown data 'folder'"),
        ("torchvision:CIFAR1000", "did you mean 'CIFAR100'"),
        ("folder:nowhere", "cannot read the folder nowhere: no such file"),
        ("npz:nowhere.npz", "nowhere.npz is not there"),
        ("idx:nowhere", "nowhere holds no t10k-images-idx3-ubyte"),
        ("imagenet:nowhere", "cannot read the folder nowhere"),
        ("sample:x", "write `sample`"),
        (".", "did you mean 'folder:.'"),
        ("", "unknown data ''"),
    ],
)
def test_spellings_that_cannot_be_read(tmp_path, monkeypatch, text, says):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CostcertError, match=says):
        parse_dataset(text)


def test_an_empty_folder(tmp_path):
    (tmp_path / "cat").mkdir()
    with pytest.raises(CostcertError, match="holds no images in subfolders"):
        parse_dataset(f"folder:{tmp_path}")


def test_a_name_that_is_not_unicode():
    with pytest.raises(CostcertError, match=r"'b\\udcff' of x is not valid Unicode"):
        ArrayDataset("x", PIXELS[:2], [0, 1], ids=["a", "b\udcff"])


def test_a_limit_is_a_fixed_choice_in_order_and_a_larger_one_adds():
    data = parse_dataset("sample")
    chosen = limited(data, 5, seed=3)
    # Fixed here, because the choice must never change.
    assert chosen.ids == ["t10k-00200", "t10k-00335", "t10k-00440", "t10k-00448", "t10k-00474"]
    assert set(chosen.ids) < set(limited(data, 50, seed=3).ids)
    assert limited(data, 50, seed=3).ids == sorted(limited(data, 50, seed=3).ids)
    assert chosen.ids != limited(data, 5, seed=4).ids
    assert limited(data, 500).ids == data.ids
    assert (chosen.num_classes, chosen.class_names, chosen.split) == (10, data.class_names, "test")
    at = data.ids.index(chosen.ids[2])
    assert chosen.label(2) == data.label(at)
    assert np.array_equal(np.asarray(chosen.image(2)), np.asarray(data.image(at)))
    with pytest.raises(CostcertError, match="requested 501 images, but sample has 500"):
        limited(data, 501)


def test_a_subset_knows_all_classes_of_data_without_names():
    data = ArrayDataset("p", PIXELS, range(7))
    assert with_ids(data, ["00002"]).num_classes == 7


def test_ids_from_a_file(tmp_path):
    data = parse_dataset("sample")
    (tmp_path / "ids.txt").write_text(f"{data.ids[7]}\n\n {data.ids[2]} \n{data.ids[7]}\n")
    chosen = with_ids(data, read_ids(tmp_path / "ids.txt"))
    assert chosen.ids == [data.ids[2], data.ids[7]]
    with pytest.raises(
        CostcertError, match=r"1 of 2 ids are not in sample, the first is 't10k-0000' \(did you"
    ):
        with_ids(data, [data.ids[0], "t10k-0000"])
    with pytest.raises(CostcertError, match="the list of ids is empty"):
        with_ids(data, [])
    with pytest.raises(CostcertError, match="expected a text file, one id per line"):
        read_ids(tmp_path / "nowhere.txt")
