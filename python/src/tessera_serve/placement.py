"""A placement strategy in Python, as a program that `tessera plan placement --strategy` runs.

    #!/usr/bin/env python3
    from tessera_serve.placement import Plan, Problem, placement_plugin

    @placement_plugin
    def all_at_the_input(problem: Problem) -> Plan:
        return Plan({model.name: [problem.input_of(model).name] * len(model.layers)
                     for model in problem.models})

    if __name__ == "__main__":
        all_at_the_input.run()

The fields are those of the problem file (`docs/planning.md`).
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Callable, TextIO, TypeVar

from tessera_serve.errors import InvalidRequest, TesseraError

Record = TypeVar("Record")
# What the model is called of a problem that has only one.
ONLY_MODEL = "model"


class NoPlan(TesseraError):
    """A strategy found no plan; the message says why."""


@dataclass(frozen=True)
class Node:
    """A host that runs layers."""

    name: str
    tier: int = 0
    """How far from where inputs come from; layers never go back to a lower tier."""
    input: bool = False
    """Whether inputs come from here, where a model says nothing else."""
    kind: str | None = None
    """Which of a layer's `times_ms` is its own."""
    flops_per_second: float | None = None
    memory_bytes: float | None = None
    """Memory for layers; None: enough for all."""
    storage_bytes: float | None = None
    """Storage for layers; None: enough for all."""
    watts: float | None = None
    joules_per_byte_sent: float | None = None


@dataclass(frozen=True)
class ExitSetting:
    """The exit behind a layer, with its threshold."""

    threshold: float
    rate: float
    """Share of what gets here that leaves."""
    accuracy: float | None = None


@dataclass(frozen=True)
class Layer:
    """A layer of a model, or a block of layers."""

    name: str | None = None
    block: str | None = None
    """Layers of the same block are on a node once."""
    flops: float = 0.0
    times_ms: Mapping[str, float] = field(default_factory=dict)
    """Measured milliseconds, by kind of node."""
    memory_bytes: float = 0.0
    storage_bytes: float = 0.0
    input_bytes: float | None = None
    output_bytes: float | None = None
    execution_probability: float | None = None
    """Share of requests that get here."""
    exit: ExitSetting | None = None

    def time_ms(self, node: Node) -> float:
        """Milliseconds that it takes on a node."""
        if node.kind is not None and node.kind in self.times_ms:
            return self.times_ms[node.kind]
        if not node.flops_per_second:
            raise NoPlan(f"the time of layer {self.name} on node {node.name} is not known")
        return self.flops / node.flops_per_second * 1000.0


@dataclass(frozen=True)
class Model:
    """A model whose layers are to be placed, from the first to the last."""

    name: str
    layers: tuple[Layer, ...]
    weight: float = 1.0
    input: str | None = None
    """The node that its inputs come from, where that is another than the others'."""
    reply_bytes: float | None = None
    input_bytes: float | None = None
    accuracy: float | None = None
    least_accuracy: float | None = None


@dataclass(frozen=True)
class Moving:
    """What it costs to move layers away from where they are."""

    layer_ms: float = 0.0
    bits_per_second: float = 0.0
    requests: float = 1.0
    least_gain: float = 0.02


@dataclass(frozen=True)
class Plan:
    """By model, the names of the nodes of its layers, in their order."""

    nodes: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Problem:
    """Nodes, the links between them, and the models to be placed on them."""

    nodes: tuple[Node, ...]
    throughput_bits_per_second: tuple[tuple[float | None, ...], ...]
    """From each node (row) to each other (column); 0: no connection, None: the same node."""
    latency_ms: tuple[tuple[float | None, ...], ...]
    models: tuple[Model, ...]
    """The models; one that is called `model` where the problem lists layers alone."""
    moving: Moving = Moving()
    seed: int = 0
    """For strategies that draw lots."""
    previous: Plan | None = None
    """The plan that is in use."""
    has_only_layers: bool = False
    """Whether the problem lists the layers of one model, without a name."""

    def input_of(self, model: Model) -> Node:
        """The node that a model's inputs come from."""
        for node in self.nodes:
            if node.name == model.input or (model.input is None and node.input):
                return node
        raise InvalidRequest(f'model "{model.name}": no node is its input, expected one')


Strategy = Callable[[Problem], Plan]


class PlacementPlugin:
    """A strategy that is a function still, and a program with `run`."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        functools.update_wrapper(self, strategy)

    def __call__(self, problem: Problem) -> Plan:
        """The plan for a problem."""
        return self._strategy(problem)

    def run(self, input: TextIO = sys.stdin, output: TextIO = sys.stdout) -> None:
        """Reads a problem, writes a plan, and ends with an error where there is none."""
        problem = read_problem(json.load(input))
        try:
            plan = self(problem)
        except NoPlan as error:
            sys.exit(str(error))
        json.dump(write_plan(plan, problem), output)
        output.flush()


def placement_plugin(strategy: Strategy) -> PlacementPlugin:
    """Makes a function a placement strategy that `tessera plan placement` can run."""
    return PlacementPlugin(strategy)


def read_problem(document: Mapping[str, Any]) -> Problem:
    """A problem from the JSON that a plugin is given."""
    models = document.get("models")
    has_only_layers = not models
    if has_only_layers:
        models = [{"name": ONLY_MODEL, "layers": document["layers"]}]
    return Problem(
        nodes=tuple(_record(Node, node) for node in document["nodes"]),
        throughput_bits_per_second=tuple(map(tuple, document["throughput_bits_per_second"])),
        latency_ms=tuple(map(tuple, document["latency_ms"])),
        models=tuple(_read_model(model) for model in models or []),
        moving=_record(Moving, document.get("moving") or {}),
        seed=document.get("seed", 0),
        previous=_read_plan(document.get("previous")),
        has_only_layers=has_only_layers,
    )


def write_plan(plan: Plan, problem: Problem) -> dict[str, Any]:
    """A plan as the JSON that a plugin gives."""
    for model in problem.models:
        placed = len(plan.nodes.get(model.name, ()))
        if placed != len(model.layers):
            raise InvalidRequest(
                f'model "{model.name}": the plan has {placed} nodes, '
                f"expected one for each of {len(model.layers)} layers"
            )
    if problem.has_only_layers:
        return {"nodes": list(plan.nodes[ONLY_MODEL])}
    names = [model.name for model in problem.models]
    return {"models": [{"name": name, "nodes": list(plan.nodes[name])} for name in names]}


def _read_plan(document: Mapping[str, Any] | None) -> Plan | None:
    if document is None:
        return None
    if "nodes" in document:
        return Plan({ONLY_MODEL: tuple(document["nodes"])})
    return Plan({model["name"]: tuple(model["nodes"]) for model in document["models"]})


def _read_model(document: Mapping[str, Any]) -> Model:
    layers = tuple(_read_layer(layer) for layer in document["layers"])
    return _record(Model, {**document, "layers": layers})


def _read_layer(document: Mapping[str, Any]) -> Layer:
    settings = document.get("exit") or []
    setting = _record(ExitSetting, settings[0]) if settings else None
    return _record(Layer, {**document, "exit": setting})


def _record(kind: type[Record], document: Mapping[str, Any]) -> Record:
    """A dataclass from a document; fields of later versions are passed over."""
    known = {entry.name for entry in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in document.items() if name in known})
