"""Checks one model: where it can be cut, `tessera verify`, and what a server answers."""

import hashlib
import json
import shlex
import statistics
import subprocess
from pathlib import Path

import numpy

import reference
from files import Model
from serving import Server, environment

INSPECT_SECONDS = 120
VERIFY_SECONDS = 600
REQUESTS = 3
BLOCKS = 4


def check(binary: Path, model: Model, file: Path) -> dict:
    """All that was found about a model. What fails is a line in `reasons`."""
    result = {"name": model.name, "file": str(file), "bytes": file.stat().st_size}
    result["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    reasons = result["reasons"] = []
    result["cuts"] = attempt("inspect", reasons, lambda: inspect(binary, model, file))
    result["verify"] = [
        attempt("verify", reasons, lambda shapes=shapes: verify(binary, model, file, shapes))
        for shapes in model.shapes
    ]
    expected = attempt("onnxruntime", reasons, lambda: questions(model, file))
    result["precision"] = expected.get("precision")
    if "error" in expected:
        return result
    result["served"] = attempt("served", reasons, lambda: serve(binary, file, expected))
    # A model that can't be cut is served in one piece only.
    blocks = min(BLOCKS, result["cuts"].get("open", 0) + 1)
    if blocks > 1:
        # Otherwise blocks that no other model shares would run as one.
        options = ("--blocks", str(blocks), "--no-fusion")
        result["served_cut"] = attempt(
            "served cut", reasons, lambda: serve(binary, file, expected, *options)
        )
    return result


class Failed(RuntimeError):
    """A command of tessera that failed."""

    def __init__(self, command: list, why: str):
        super().__init__(why)
        self.command = shlex.join(str(word) for word in command)


def attempt(what: str, reasons: list[str], work) -> dict:
    """What `work` found, or why it failed, which is a reason too."""
    try:
        found = work()
    except Exception as error:
        found = {"error": str(error), "command": getattr(error, "command", None)}
    for wrong in ("error", "unequal"):
        if wrong in found:
            reasons.append(f"{what}: {found[wrong]}")
    return found


def run(command: list, seconds: float) -> dict:
    """What a command of tessera prints as JSON."""
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, env=environment()
        )
    except subprocess.TimeoutExpired:
        raise Failed(command, f"took more than {seconds} s") from None
    if ended.returncode != 0:
        said = " ".join(ended.stderr.split())
        raise Failed(command, said or f"ended with {ended.returncode}")
    return json.loads(ended.stdout)


def shape_options(shapes: dict) -> list[str]:
    options = []
    for name, shape in shapes.items():
        options += ["--shape", f"{name}={','.join(str(size) for size in shape)}"]
    return options


def range_options(model: Model, file: Path) -> list[str]:
    """Ranges of integer inputs, which are those that the command takes."""
    if not model.ranges:
        return []
    options, types = [], reference.input_types(file)
    for name, (low, high) in model.ranges.items():
        if "int" in types[name]:
            options += ["--range", f"{name}={low},{high}"]
    return options


def inspect(binary: Path, model: Model, file: Path) -> dict:
    """Cut points with open dimensions and with fixed ones, and the hops of the latter."""
    command = [binary, "inspect", file, "--json"]
    opened = run(command, INSPECT_SECONDS)["cut_points"]
    fixed = run([*command, *shape_options(model.shapes[0])], INSPECT_SECONDS)["cut_points"]
    hops = [point["bytes"] for point in fixed if point["bytes"] is not None]
    return {
        "open": len(opened),
        "fixed": len(fixed),
        "largest_hop": max(hops, default=None),
        "median_hop": statistics.median(hops) if hops else None,
        "unknown_hops": len(fixed) - len(hops),
    }


def verify(binary: Path, model: Model, file: Path, shapes: dict) -> dict:
    """Cut at every cut point, the model must give what it gives in one piece."""
    command = [binary, "verify", file, "--every", "--json"]
    command += [*shape_options(shapes), *range_options(model, file)]
    found = run(command, VERIFY_SECONDS)
    return {
        "blocks": found["blocks"],
        "absolute": found["max_absolute_difference"],
        "relative": found["max_relative_difference"],
    }


def questions(model: Model, file: Path) -> dict:
    """Random requests, and what ONNX Runtime answers to them with the uncut file."""
    asked = reference.session(file)
    random = numpy.random.default_rng(0)
    pairs = []
    for number in range(REQUESTS):
        # The last is of the same shape as the first, whether there are one or two.
        shapes = model.shapes[number % len(model.shapes)]
        inputs = reference.random_inputs(asked, model, shapes, random)
        pairs.append((inputs, reference.answer(asked, inputs)))
    precision = reference.precision(file)
    tolerances = reference.TOLERANCES[precision]
    if reference.are_same(pairs[0][1], pairs[-1][1], tolerances):
        raise RuntimeError("the answers to all inputs are the same, so that they prove nothing")
    return {"precision": precision, "tolerances": tolerances, "pairs": pairs}


def serve(binary: Path, file: Path, expected: dict, *options: str) -> dict:
    """Serves the model and compares its answers."""
    command = [binary, "serve", file, *options]
    try:
        server = Server(command)
        try:
            answers = [server.infer(file.stem, inputs) for inputs, _ in expected["pairs"]]
        finally:
            server.stop()
    except RuntimeError as error:
        raise Failed(command, str(error)) from None
    found = {"steps": len(server.told["tasks"][0]["path"])}
    try:
        found["apart"] = largest_difference(expected, answers)
    except RuntimeError as error:
        found["unequal"] = str(error)
        found["command"] = Failed(command, "").command
    return found


def largest_difference(expected: dict, answers: list[dict]) -> float:
    """How far answers are apart from what is expected; raises where it is too far."""
    pairs = zip(expected["pairs"], answers, strict=True)
    return max(
        reference.compare(wanted, got, expected["tolerances"]) for (_, wanted), got in pairs
    )
