"""Small ONNX models, one for each thing that a client may trip over."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Ports = dict[str, tuple[int, "Sequence[str | int | None]"]]

# Datatype of the protocol: its ONNX number.
NUMBERS: dict[str, int] = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BF16": TensorProto.BFLOAT16,
    "BYTES": TensorProto.STRING,
}


def identity_name(datatype: str) -> str:
    """The task that gives what it takes."""
    return f"identity_{datatype.lower()}"


def write_all(folder: Path) -> list[Path]:
    """Writes every model and says where each is."""
    files = [identity(folder, datatype) for datatype in NUMBERS]
    return [*files, pair(folder), scalar(folder), classifier(folder), counting(folder)]


def identity(folder: Path, datatype: str) -> Path:
    """Gives what it takes: [batch, width]."""
    number = NUMBERS[datatype]
    shape: list[str | int | None] = ["batch", "width"]
    return save(
        folder,
        identity_name(datatype),
        [helper.make_node("Identity", ["x"], ["y"])],
        inputs={"x": (number, shape)},
        outputs={"y": (number, shape)},
    )


def pair(folder: Path) -> Path:
    """Two inputs and two outputs: the sum and the difference. One name is no word of Python."""
    shape: list[str | int | None] = ["batch", 4]
    return save(
        folder,
        "pair",
        [
            helper.make_node("Add", ["a", "b.1"], ["sum"]),
            helper.make_node("Sub", ["a", "b.1"], ["difference"]),
        ],
        inputs={"a": (TensorProto.FLOAT, shape), "b.1": (TensorProto.FLOAT, shape)},
        outputs={"sum": (TensorProto.FLOAT, shape), "difference": (TensorProto.FLOAT, shape)},
    )


def scalar(folder: Path) -> Path:
    """A number without dimensions."""
    return save(
        folder,
        "scalar",
        [helper.make_node("Neg", ["x"], ["y"])],
        inputs={"x": (TensorProto.FLOAT, [])},
        outputs={"y": (TensorProto.FLOAT, [])},
    )


def classifier(folder: Path) -> Path:
    """Three classes, with an exit: rows with one large number are certain."""
    shape: list[str | int | None] = ["batch", 3]
    path = save(
        folder,
        "classifier",
        [
            helper.make_node("Relu", ["x"], ["trunk"]),
            helper.make_node("Mul", ["trunk", "two"], ["early"]),
            helper.make_node("Neg", ["trunk"], ["hidden"]),
            helper.make_node("Mul", ["hidden", "two"], ["scores"]),
        ],
        inputs={"x": (TensorProto.FLOAT, shape)},
        outputs={"scores": (TensorProto.FLOAT, shape), "early": (TensorProto.FLOAT, shape)},
        weights={"two": np.array([2.0], np.float32)},
    )
    manifest = path.with_name("classifier.exits.json")
    manifest.write_text('{"exits": [{"output": "early", "threshold": 0.1}]}')
    return path


def counting(folder: Path) -> Path:
    """Adds `x` to a sum until that is 1: with 0 it never ends."""
    number = TensorProto.FLOAT
    body = helper.make_graph(
        [
            helper.make_node("Add", ["sum", "x"], ["next"]),
            helper.make_node("Less", ["next", "one"], ["goes_on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("before", TensorProto.BOOL, []),
            helper.make_tensor_value_info("sum", number, [1]),
        ],
        [
            helper.make_tensor_value_info("goes_on", TensorProto.BOOL, [1]),
            helper.make_tensor_value_info("next", number, [1]),
        ],
    )
    return save(
        folder,
        "counting",
        [helper.make_node("Loop", ["", "true", "zero"], ["y"], body=body)],
        inputs={"x": (number, [1])},
        outputs={"y": (number, [1])},
        weights={
            "true": np.array(True),
            "zero": np.zeros([1], np.float32),
            "one": np.ones([1], np.float32),
        },
    )


def save(
    folder: Path,
    name: str,
    nodes: list[onnx.NodeProto],
    *,
    inputs: Ports,
    outputs: Ports,
    weights: dict[str, np.ndarray] | None = None,
) -> Path:
    """Writes a model."""
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info(port, *kind) for port, kind in inputs.items()],
        [helper.make_tensor_value_info(port, *kind) for port, kind in outputs.items()],
        [numpy_helper.from_array(value, key) for key, value in (weights or {}).items()],
    )
    opset = helper.make_opsetid("", 18)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=9)
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    return path
