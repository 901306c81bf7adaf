"""A linear network as an ONNX file."""

import numpy as np
import onnx
from onnx import TensorProto, helper

RNG = np.random.default_rng(3)


def onnx_file(path, shape, kind=TensorProto.FLOAT, classes=3):
    """Write a network (channel means times a matrix) and return the matrix."""
    last = shape[-1] == 3
    weights = RNG.normal(size=(3, classes)).astype(np.float32)
    nodes = [
        helper.make_node("Cast", ["images"], ["x"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[1, 2] if last else [2, 3], keepdims=0),
        helper.make_node("MatMul", ["m", "w"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("images", kind, shape)],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [shape[0], classes])],
        [helper.make_tensor("w", TensorProto.FLOAT, weights.shape, weights.ravel())],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, path)
    return weights
