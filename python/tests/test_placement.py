"""Functions of Python are placement strategies that the planner runs."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import tessera_serve
from tessera_serve.binary import find_binary
from tessera_serve.placement import (
    ExitSetting,
    NoPlan,
    Plan,
    Problem,
    placement_plugin,
    read_problem,
    write_plan,
)

SOURCES = Path(tessera_serve.__file__).parents[1]

NODES = [
    {"name": "phone", "kind": "slow", "input": True, "memory_bytes": 30e6},
    {"name": "server", "kind": "fast", "tier": 1},
]
LAYERS = [
    {"name": "stem", "times_ms": {"slow": 8, "fast": 1}, "memory_bytes": 20e6, "input_bytes": 6e5},
    {"name": "body", "times_ms": {"slow": 40, "fast": 4}, "memory_bytes": 20e6, "input_bytes": 1e5},
]
LINKS = {
    "throughput_bits_per_second": [[None, 4e7], [4e7, None]],
    "latency_ms": [[None, 10], [10, None]],
}
ONE_MODEL: dict[str, Any] = {"nodes": NODES, **LINKS, "layers": LAYERS}
TWO_MODELS: dict[str, Any] = {
    "nodes": NODES,
    **LINKS,
    "models": [{"name": "birds", "layers": LAYERS}, {"name": "ants", "layers": LAYERS[1:]}],
}
PLUGIN = """
    from tessera_serve.placement import NoPlan, Plan, Problem, placement_plugin

    @placement_plugin
    def all_at_the_fastest(problem: Problem) -> Plan:
        if problem.seed == 13:
            raise NoPlan("13 is no good seed")
        def cost(node):
            return sum(layer.time_ms(node) for model in problem.models for layer in model.layers)
        fastest = min(problem.nodes, key=cost)
        return Plan({model.name: [fastest.name] * len(model.layers) for model in problem.models})

    if __name__ == "__main__":
        all_at_the_fastest.run()
"""


def plan(folder: Path, problem: dict[str, Any], *options: str) -> subprocess.CompletedProcess[str]:
    """Has the planner run the plugin."""
    plugin = folder / "plugin.py"
    plugin.write_text(f"#!{sys.executable}\n" + textwrap.dedent(PLUGIN))
    plugin.chmod(0o755)
    file = folder / "problem.json"
    file.write_text(json.dumps(problem))
    command = ["plan", "placement", str(file), "--strategy", str(plugin), "--json", *options]
    return subprocess.run(
        [str(find_binary()), *command],
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("problem", [ONE_MODEL, TWO_MODELS])
def test_the_planner_runs_a_function(tmp_path: Path, problem: dict[str, Any]) -> None:
    done = plan(tmp_path, problem)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["plan"]
    placed = [found] if "nodes" in found else found["models"]
    assert all(set(model["nodes"]) == {"server"} for model in placed)


def test_the_planner_tells_why_there_is_no_plan(tmp_path: Path) -> None:
    done = plan(tmp_path, ONE_MODEL, "--seed", "13")
    assert done.returncode == 1
    assert "13 is no good seed" in done.stderr


@pytest.mark.parametrize("problem", ["placement.yaml", "exits.yaml"])
def test_the_problems_of_the_documents_are_read(tmp_path: Path, problem: str) -> None:
    examples = Path(__file__).parents[2] / "examples" / "plan"
    shown = tmp_path / "show.py"
    shown.write_text(f"#!/bin/sh\ncat > {tmp_path}/problem.json\nexit 1\n")
    shown.chmod(0o755)
    command = ["plan", "placement", str(examples / problem), "--strategy", str(shown)]
    subprocess.run([str(find_binary()), *command], capture_output=True, check=False)
    document = json.loads((tmp_path / "problem.json").read_text())
    found = read_problem(document)
    assert len(found.nodes) == len(document["nodes"])
    assert found.input_of(found.models[0]).input
    assert found.has_only_layers == ("layers" in document)


def test_a_problem_is_read_with_all_that_it_says() -> None:
    document = {
        **TWO_MODELS,
        "seed": 5,
        "previous": {"models": [{"name": "birds", "nodes": ["phone", "server"]}]},
        "moving": {"requests": 7, "of_a_later_version": 1},
    }
    document["models"][1]["layers"] = [
        {"flops": 2e9, "exit": [{"threshold": 0.5, "rate": 0.25, "accuracy": 0.9}]}
    ]
    found = read_problem(document)
    assert found.seed == 5
    assert found.previous == Plan({"birds": ("phone", "server")})
    assert found.moving.requests == 7
    assert found.models[1].layers[0].exit == ExitSetting(0.5, 0.25, 0.9)
    with pytest.raises(NoPlan, match="time of layer"):
        found.models[1].layers[0].time_ms(found.nodes[0])


def test_a_plan_must_have_a_node_for_each_layer() -> None:
    problem = read_problem(ONE_MODEL)
    with pytest.raises(tessera_serve.InvalidRequest, match="1 nodes, expected one for each of 2"):
        write_plan(Plan({"model": ["phone"]}), problem)


def test_a_plugin_is_a_function_still() -> None:
    @placement_plugin
    def all_at_the_phone(problem: Problem) -> Plan:
        """Stays."""
        return Plan({model.name: ["phone"] * len(model.layers) for model in problem.models})

    assert all_at_the_phone.__doc__ == "Stays."
    assert all_at_the_phone(read_problem(ONE_MODEL)).nodes == {"model": ["phone", "phone"]}
    output = io.StringIO()
    all_at_the_phone.run(io.StringIO(json.dumps(ONE_MODEL)), output)
    assert json.loads(output.getvalue()) == {"nodes": ["phone", "phone"]}
