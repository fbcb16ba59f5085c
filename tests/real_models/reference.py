"""What ONNX Runtime says to the uncut file, random inputs for it, and how answers are compared."""

from pathlib import Path

import numpy
import onnx
import onnxruntime

from files import Model

# Relative to each element, and relative to the largest one of an output.
TOLERANCES = {"32 bits": (1e-3, 1e-4), "16 bits": (2e-2, 2e-2), "8 bits": (5e-2, 5e-2)}
DEFAULT_RANGE = (0, 2)
FLOATS = {
    "tensor(float16)": "float16",
    "tensor(float)": "float32",
    "tensor(double)": "float64",
}
WORDS = ("ant", "bee", "cat")


def session(file: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def random_inputs(asked, model: Model, shapes: dict, random: numpy.random.Generator) -> dict:
    """A tensor for each input of a session."""
    inputs = {}
    for port in asked.get_inputs():
        shape = shapes.get(port.name, port.shape)
        if not all(isinstance(size, int) and size >= 0 for size in shape):
            raise RuntimeError(f"the list has no shape for the input {port.name}, {port.shape}")
        if port.name in model.slow:
            inputs[port.name] = random_walk(random, shape)
        else:
            values = random_values(random, port.type, shape, model.ranges.get(port.name))
            inputs[port.name] = numpy.asarray(values)
    return inputs


def random_walk(random: numpy.random.Generator, shape) -> numpy.ndarray:
    """Between -1 and 1, with small steps along the last dimension."""
    steps = random.standard_normal(shape) / 30
    return steps.cumsum(axis=-1).clip(-1, 1).astype(numpy.float32)


def random_values(random: numpy.random.Generator, type_: str, shape, values_range):
    name = FLOATS.get(type_)
    if name is not None and values_range is None:
        return numpy.asarray(random.standard_normal(shape)).astype(name)
    if type_ == "tensor(string)":
        return random.choice(numpy.array(WORDS, dtype=object), shape)
    integers = numpy.asarray(random.integers(*(values_range or DEFAULT_RANGE), shape))
    return integers.astype(name or type_.removeprefix("tensor(").removesuffix(")"))


def answer(asked: onnxruntime.InferenceSession, inputs: dict) -> dict[str, numpy.ndarray]:
    """The outputs by name. Of a ZipMap, which is a dictionary for each row, it is the values."""
    outputs = {}
    for port, value in zip(asked.get_outputs(), asked.run(None, inputs), strict=True):
        if isinstance(value, list):
            value = numpy.array([list(row.values()) for row in value], dtype=numpy.float32)
        outputs[port.name] = numpy.asarray(value)
    return outputs


def input_types(file: Path) -> dict[str, str]:
    return {port.name: port.type for port in session(file).get_inputs()}


def precision(file: Path) -> str:
    """How exactly a model computes: in 8 bits somewhere, in 16 bits somewhere, or in 32."""
    model = onnx.load(file, load_external_data=False)
    graphs, found = [model.graph, *model.functions], "32 bits"
    while graphs:
        graph = graphs.pop()
        if any(tensor.data_type == onnx.TensorProto.FLOAT16 for tensor in weights(graph)):
            found = "16 bits"
        for node in graph.node:
            if is_quantised(node.op_type):
                return "8 bits"
            for attribute in node.attribute:
                graphs += [attribute.g] if attribute.HasField("g") else []
                graphs += attribute.graphs
    return found


def weights(graph) -> list:
    """Tensors that a graph has inside, of initializers and of nodes that are constants."""
    constants = [a.t for node in graph.node for a in node.attribute if a.HasField("t")]
    return [*getattr(graph, "initializer", ()), *constants]


def is_quantised(operator: str) -> bool:
    return operator.endswith("QuantizeLinear") or operator.endswith("Integer")


def compare(expected: dict, got: dict, tolerances: tuple[float, float]) -> float:
    """The largest difference, relative to the largest element; raises where it is too large."""
    worst = 0.0
    for name, value in expected.items():
        if name not in got:
            raise RuntimeError(f"no output {name} came back, but {', '.join(got)}")
        worst = max(worst, compare_tensors(name, value, got[name], tolerances))
    return worst


def are_same(expected: dict, got: dict, tolerances: tuple[float, float]) -> bool:
    try:
        compare(expected, got, tolerances)
        return True
    except RuntimeError:
        return False


def compare_tensors(name: str, expected, got, tolerances: tuple[float, float]) -> float:
    if expected.shape != got.shape:
        raise RuntimeError(f"output {name} has shape {got.shape}, not {expected.shape}")
    if expected.dtype != got.dtype:
        raise RuntimeError(f"output {name} is of {got.dtype}, not of {expected.dtype}")
    if expected.dtype.kind not in "fc":
        if not (expected == got).all():
            count = int((expected != got).sum())
            raise RuntimeError(f"output {name} differs in {count} of {expected.size} elements")
        return 0.0
    return compare_floats(name, *(side.astype("float64") for side in (expected, got)), tolerances)


def compare_floats(name: str, expected, got, tolerances: tuple[float, float]) -> float:
    relative, of_largest = tolerances
    finite = numpy.abs(expected[numpy.isfinite(expected)])
    largest = float(finite.max()) if finite.size else 0.0
    least = of_largest * largest
    same = numpy.isclose(got, expected, rtol=relative, atol=least, equal_nan=True)
    both = numpy.isfinite(expected) & numpy.isfinite(got)
    apart = float(numpy.abs(expected - got)[both].max(initial=0.0))
    if not same.all():
        count = int((~same).sum())
        raise RuntimeError(
            f"output {name} differs in {count} of {expected.size} elements, "
            f"by {apart:.3g} at most where the largest is {largest:.3g}"
        )
    return apart / largest if largest else apart
