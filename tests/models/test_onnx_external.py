"""External weights of ONNX files are all found, downloaded and part of the digest."""

import hashlib

import fsspec
import numpy as np
import onnx
import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import costcert as cc
from costcert.errors import CostcertError
from costcert.models.loading import load_model
from costcert.models.onnx_external import external_files
from costcert.store.locations import locate
from strategies import examples

IMAGES = np.random.default_rng(3).integers(0, 256, (2, 8, 8, 3), dtype=np.uint8)
REGIONS = cc.Columns(4, stride=4).regions((8, 8))


def external_tensor(name, location, **more):
    """A tensor with its data in another file."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[3, 4])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": "0", **more}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def saved(folder, weights, bias, *, locations=("weights.bin", "weights.bin")):
    """A network (channel means times weights [3, 4] plus a bias [4]) with external weights; its spelling."""
    folder.mkdir(parents=True, exist_ok=True)
    content = dict.fromkeys(locations, b"")
    tensors = []
    for name, values, location in zip(("weights", "bias"), (weights, bias), locations, strict=True):
        offset, length = str(len(content[location])), str(4 * values.size)
        tensors.append(external_tensor(name, location, offset=offset, length=length))
        tensors[-1].dims[:] = values.shape
        content[location] += values.astype(np.float32).tobytes()
    for location, data in content.items():
        (folder / location).parent.mkdir(parents=True, exist_ok=True)
        (folder / location).write_bytes(data)
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["means"], axes=[2, 3], keepdims=0),
        helper.make_node("MatMul", ["means", "weights"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "linear",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 4])],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return f"onnx:{folder / 'm.onnx'}"


def random_weights(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(3, 4)), rng.normal(size=4)


def opened(spelling):
    return load_model(spelling, mean=0.5, std=0.5)


@pytest.mark.parametrize(
    "locations",
    [("weights.bin",) * 2, ("a", "b"), ("m.onnx.data",) * 2, ("deep/er/w.bin", "b"), ("./w", "ü ö.bin")],
    ids=str,
)
def test_models_that_differ_in_external_weights_alone_differ_in_their_digest(tmp_path, locations):
    (weights, bias), (other, _) = random_weights(1), random_weights(2)
    models = [
        opened(saved(tmp_path / name, first, second, locations=locations))
        for name, first, second in (
            ("one", weights, bias),
            ("same", weights, bias),
            ("other weights", other, bias),
            ("other bias", weights, bias + 1),
        )
    ]
    assert len({(tmp_path / name / "m.onnx").read_bytes() for name in ("one", "other weights")}) == 1
    one, same, *others = (model.metadata()["digest"] for model in models)
    assert one == same
    assert len({one, *others}) == 3
    expected = (IMAGES / 127.5 - 1).mean(axis=(1, 2)) @ weights + bias
    everything = cc.Columns(8, stride=8).regions((8, 8))
    np.testing.assert_allclose(models[0].logits(IMAGES, everything)[:, 0], expected, atol=1e-5)


def test_the_digest_depends_on_which_file_holds_which_bytes(tmp_path):
    """The concatenation of both files stays the same at first, but they are split at another byte."""
    weights, bias = random_weights(1)
    spelling = saved(tmp_path, weights, bias, locations=("a", "b"))
    before = opened(spelling).metadata()["digest"]
    content = (tmp_path / "a").read_bytes() + (tmp_path / "b").read_bytes()
    (tmp_path / "a").write_bytes(content[:52])
    (tmp_path / "b").write_bytes(content[52:] + content[:4])
    after = opened(spelling).metadata()["digest"]
    (tmp_path / "b").write_bytes(content[52:] + content[4:8])
    assert len({before, after, opened(spelling).metadata()["digest"]}) == 3


def test_the_digest_of_a_model_in_one_file_is_that_of_the_file(tmp_path):
    model = onnx.load(saved(tmp_path / "apart", *random_weights(1)).removeprefix("onnx:"))
    onnx.save(model, tmp_path / "m.onnx")
    (tmp_path / "m.onnx.data").write_bytes(b"of some other model")
    expected = hashlib.sha256((tmp_path / "m.onnx").read_bytes()).hexdigest()
    assert opened(f"onnx:{tmp_path / 'm.onnx'}").metadata()["digest"] == f"sha256:{expected}"


@pytest.mark.parametrize(
    "location",
    [
        "/etc/weights.bin",
        "../weights.bin",
        "a/../../w",
        "",
        ".",
        "..\\w",
        "C:\\w",
        "C:w",
        "\\\\host\\w",
        "a\0b",
        "*/_ORT_MEM_ADDR_/*",
    ],
)
def test_weights_outside_the_folder_are_refused(tmp_path, location):
    graph = helper.make_graph([], "g", [], [], [external_tensor("w", location)])
    (tmp_path / "m.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    with pytest.raises(CostcertError, match=r"keeps weights at .*, outside its own folder"):
        opened(f"onnx:{tmp_path / 'm.onnx'}")


def test_missing_weights_are_named(tmp_path):
    spelling = saved(tmp_path, *random_weights(1), locations=("deep/a", "b"))
    (tmp_path / "deep" / "a").unlink()
    with pytest.raises(CostcertError, match=r"m\.onnx keeps weights in .*deep.a, which is not there"):
        opened(spelling)


def test_weights_are_downloaded_with_the_model(tmp_path):
    here = opened(saved(tmp_path, *random_weights(1), locations=("deep/er/a.bin", "b")))
    store = fsspec.filesystem("memory")
    try:
        for name in ("m.onnx", "deep/er/a.bin", "b"):
            (locate("memory://bucket/models") / name).put(tmp_path / name)
        there = opened("onnx:memory://bucket/models/m.onnx")
        assert there.metadata()["digest"] == here.metadata()["digest"]
        assert np.array_equal(there.logits(IMAGES, REGIONS), here.logits(IMAGES, REGIONS))
        (locate("memory://bucket/models") / "b").unlink()
        with pytest.raises(CostcertError, match="keeps weights in memory://bucket/models/b, which is not"):
            opened("onnx:memory://bucket/models/m.onnx")
    finally:
        store.store.clear()
        store.pseudo_dirs[:] = [""]


def test_the_format_of_the_runtime_is_refused(tmp_path):
    saved(tmp_path, *random_weights(1))
    (tmp_path / "m.onnx").rename(tmp_path / "m.ort")
    (tmp_path / "n.onnx").write_bytes(b"\x08\x00\x00\x00ORTM\x00\x00")
    for name in ("m.ort", "n.onnx"):
        with pytest.raises(CostcertError, match=f"{name} is in ONNX Runtime's own format"):
            opened(f"onnx:{tmp_path / name}")


def naive_locations(content):
    """Every location in the `externalData` of the model as JSON, wherever it is."""
    if isinstance(content, list):
        return set().union(*map(naive_locations, content))
    if not isinstance(content, dict):
        return set()
    entries = content.get("externalData", [])
    found = {entry["value"] for entry in entries if entry.get("key") == "location"}
    return found.union(*map(naive_locations, content.values()))


names = st.sampled_from([f"w{number}.bin" for number in range(40)])
tensors = st.one_of(
    names.map(lambda name: external_tensor("t", name)),
    st.just(helper.make_tensor("inline", TensorProto.FLOAT, [2], [1.0, 2.0])),
)
sparse = st.tuples(tensors, tensors).map(
    lambda pair: onnx.SparseTensorProto(values=pair[0], indices=pair[1], dims=[2])
)


def graphs(nodes):
    return st.builds(
        lambda nodes, tensors, sparse: onnx.GraphProto(
            name="g", node=nodes, initializer=tensors, sparse_initializer=sparse, doc_string="location"
        ),
        st.lists(nodes, max_size=2),
        st.lists(tensors, max_size=2),
        st.lists(sparse, max_size=1),
    )


def attributes(graph):
    return st.builds(
        lambda t, g, ts, gs, s, ss, f: onnx.AttributeProto(
            name="a",
            t=t,
            g=g,
            tensors=ts,
            graphs=gs,
            sparse_tensor=s,
            sparse_tensors=ss,
            f=f,
            ints=[1, 300, -1],
        ),
        st.none() | tensors,
        st.none() | graph,
        st.lists(tensors, max_size=1),
        st.lists(graph, max_size=1),
        st.none() | sparse,
        st.lists(sparse, max_size=1),
        st.floats(width=32, allow_nan=False),
    )


def nodes_of(attribute):
    return st.lists(attribute, max_size=2).map(lambda found: onnx.NodeProto(op_type="If", attribute=found))


nodes = st.recursive(
    nodes_of(attributes(st.nothing() | graphs(st.just(onnx.NodeProto(op_type="Relu"))))),
    lambda inner: nodes_of(attributes(graphs(inner))),
    max_leaves=3,
)


@st.composite
def models(draw):
    model = onnx.ModelProto(ir_version=8, producer_name="location", graph=draw(graphs(nodes)))
    for function in draw(st.lists(nodes, max_size=1)):
        defaults = draw(st.lists(attributes(graphs(nodes)), max_size=1))
        model.functions.add(name="f", node=[function], attribute_proto=defaults)
    for graph in draw(st.lists(graphs(nodes), max_size=1)):
        model.training_info.add(initialization=graph, algorithm=graph)
    return model


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("onnx") / "m.onnx"


@settings(max_examples=examples(60))
@given(model=models())
def test_all_locations_are_found(file, model):
    file.write_bytes(model.SerializeToString())
    assert external_files(file, file) == sorted(naive_locations(MessageToDict(model)))


def test_a_location_that_is_not_utf8_is_refused(file):
    graph = helper.make_graph([], "g", [], [], [external_tensor("w", "abcd")])
    content = helper.make_model(graph).SerializeToString()
    file.write_bytes(content.replace(b"abcd", b"ab\xff\xfe"))
    with pytest.raises(CostcertError, match="cannot be read as ONNX"):
        external_files(file, file)


@settings(max_examples=examples(100))
@given(model=models(), data=st.data())
def test_damaged_files_are_read_or_refused(file, model, data):
    content = bytearray(model.SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        found, message = external_files(file, file), "cannot be read as ONNX"
    except CostcertError as error:
        found, message = ["refused"], str(error)
    assert "cannot be read as ONNX" in message or "outside its own folder" in message
    assert all(found)
