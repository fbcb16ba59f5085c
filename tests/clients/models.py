"""Small ONNX models, one for each thing that a client may trip over, and what they answer."""

from pathlib import Path

import numpy
import onnx
import onnxruntime
from onnx import TensorProto, helper

# dtype of the protocol: its ONNX number, and operators that every engine has for it.
ADD_SUB = {
    "FP32": (TensorProto.FLOAT, "Add", "Sub"),
    "FP64": (TensorProto.DOUBLE, "Add", "Sub"),
    "FP16": (TensorProto.FLOAT16, "Add", "Sub"),
    "INT32": (TensorProto.INT32, "Add", "Sub"),
    "INT64": (TensorProto.INT64, "Add", "Sub"),
    "INT8": (TensorProto.INT8, "BitwiseAnd", "BitwiseXor"),
    "INT16": (TensorProto.INT16, "BitwiseAnd", "BitwiseXor"),
    "UINT8": (TensorProto.UINT8, "BitwiseAnd", "BitwiseXor"),
    "UINT16": (TensorProto.UINT16, "BitwiseAnd", "BitwiseXor"),
    "UINT32": (TensorProto.UINT32, "BitwiseAnd", "BitwiseXor"),
    "UINT64": (TensorProto.UINT64, "BitwiseAnd", "BitwiseXor"),
    "BOOL": (TensorProto.BOOL, "And", "Xor"),
}


def write_all(folder: Path) -> dict[str, Path]:
    """Writes every model and says where each is."""
    files = {}
    for datatype in ADD_SUB:
        files[add_sub_name(datatype)] = add_sub(folder, datatype)
    for make in (fixed, dynamic, mixed, texts, scores):
        path = make(folder)
        files[path.stem] = path
    return files


def add_sub_name(datatype: str) -> str:
    return f"add_sub_{datatype.lower()}"


def add_sub(folder: Path, datatype: str) -> Path:
    """Two inputs and two outputs of one dtype, like Triton's "simple": [batch, 16]."""
    number, first, second = ADD_SUB[datatype]
    shape = ["batch", 16]
    return save(
        folder,
        add_sub_name(datatype),
        [
            helper.make_node(first, ["INPUT0", "INPUT1"], ["OUTPUT0"]),
            helper.make_node(second, ["INPUT0", "INPUT1"], ["OUTPUT1"]),
        ],
        inputs={"INPUT0": (number, shape), "INPUT1": (number, shape)},
        outputs={"OUTPUT0": (number, shape), "OUTPUT1": (number, shape)},
    )


def fixed(folder: Path) -> Path:
    """No batch: every dimension is fixed."""
    return save(
        folder,
        "fixed",
        [helper.make_node("Neg", ["x"], ["h"]), helper.make_node("Abs", ["h"], ["y"])],
        inputs={"x": (TensorProto.FLOAT, [2, 3])},
        outputs={"y": (TensorProto.FLOAT, [2, 3])},
    )


def dynamic(folder: Path) -> Path:
    """Two open dimensions, of which the first is the batch."""
    return save(
        folder,
        "dynamic",
        [helper.make_node("Relu", ["x"], ["h"]), helper.make_node("Neg", ["h"], ["y"])],
        inputs={"x": (TensorProto.FLOAT, ["batch", "length"])},
        outputs={"y": (TensorProto.FLOAT, ["batch", "length"])},
    )


def mixed(folder: Path) -> Path:
    """Inputs and outputs that differ in dtype and in rank."""
    return save(
        folder,
        "mixed",
        [
            helper.make_node("Cast", ["ids"], ["floats"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["values", "floats"], ["sum"]),
            helper.make_node("ReduceSum", ["ids"], ["total"], keepdims=0),
        ],
        inputs={
            "values": (TensorProto.FLOAT, [2, 4]),
            "ids": (TensorProto.INT64, [4]),
        },
        outputs={
            "sum": (TensorProto.FLOAT, [2, 4]),
            "total": (TensorProto.INT64, []),
        },
    )


def texts(folder: Path) -> Path:
    """Strings in, the same strings out."""
    return save(
        folder,
        "texts",
        [helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])],
        inputs={"INPUT0": (TensorProto.STRING, ["batch", 4])},
        outputs={"OUTPUT0": (TensorProto.STRING, ["batch", 4])},
    )


def scores(folder: Path) -> Path:
    """What is put in comes out, as scores of classes."""
    return save(
        folder,
        "scores",
        [helper.make_node("Identity", ["x"], ["y"])],
        inputs={"x": (TensorProto.FLOAT, ["batch", 5])},
        outputs={"y": (TensorProto.FLOAT, ["batch", 5])},
    )


def save(folder: Path, name: str, nodes: list, inputs: dict, outputs: dict) -> Path:
    def ports(named: dict) -> list:
        return [helper.make_tensor_value_info(port, *kind) for port, kind in named.items()]

    graph = helper.make_graph(nodes, name, ports(inputs), ports(outputs))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    return path


def expected(path: Path, inputs: dict[str, numpy.ndarray]) -> dict[str, numpy.ndarray]:
    """What ONNX Runtime answers."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs)))


def examples(datatype: str, rows: int = 1, seed: int = 0) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Inputs of an `add_sub` model."""
    from tritonclient.utils import triton_to_np_dtype

    dtype = numpy.dtype(triton_to_np_dtype(datatype))
    random = numpy.random.default_rng(seed)
    shape = (rows, 16)
    if dtype == bool:
        return random.random(shape) < 0.5, random.random(shape) < 0.5
    if dtype.kind == "f":
        return tuple(random.standard_normal(shape).astype(dtype) for _ in range(2))
    if dtype.itemsize < 4 or dtype.kind == "u":
        most = numpy.iinfo(dtype)
        return tuple(
            random.integers(most.min, most.max, shape, dtype=dtype, endpoint=True) for _ in range(2)
        )
    return tuple(random.integers(-1000, 1000, shape, dtype=dtype) for _ in range(2))
