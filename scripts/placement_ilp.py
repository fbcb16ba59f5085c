#!/usr/bin/env python3
"""Solves placements as an integer programme (HiGHS, through SciPy), to prove `exact` against.

    placement_ilp.py FILE [--output FILE]            solves the instances of a file
    placement_ilp.py --random 500 --seed 1 --tight   makes instances and solves them
    placement_ilp.py --compare RESULTS FILE          compares what `tessera bench placement` found
    placement_ilp.py --self-test                     checks the integer programme itself

The format is that of `shared/placement/*.json`; an instance may have `layers` of its own.
`--figures` says how many instances have no plan, and in how many capacity and contiguity bind.
"""

import argparse
import itertools
import json
import math
import random
import sys
import time
from pathlib import Path

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

# The solver stops at an absolute gap of 1e-6, so the objective is scaled until that is nothing.
SCALE = 1e5
TOLERANCE = 1e-9
RESOURCES = ("memory_bytes", "storage_bytes")


# --- the model


def hop_seconds(instance: dict, layer: dict, source: int, target: int) -> float:
    """How long the input of a layer takes from a node to another."""
    if source == target:
        return 0.0
    throughput = instance["throughput_bits_per_second"][source][target]
    return layer["input_bytes"] * 8 / throughput + instance["latency_ms"][source][target] / 1000


def input_node(instance: dict) -> int:
    """The node where requests come from."""
    (node,) = (n for n, node in enumerate(instance["nodes"]) if node["input"])
    return node


def latency_seconds(layers: list, instance: dict, hosts: list) -> float:
    """The expected latency (eq. 6.12): a layer and its hop count as often as the layer runs."""
    total, previous = 0.0, input_node(instance)
    for i, (layer, host) in enumerate(zip(layers, hosts, strict=True)):
        probability = layer["execution_probability"]
        hop = hop_seconds(instance, layer, previous, host)
        total += probability * layer["flops"] / instance["nodes"][host]["flops_per_second"]
        total += hop if i == 0 else probability * hop
        previous = host
    return total


def splits(hosts: list) -> int:
    """How often the node changes between layers; the way from the input node is no split."""
    return sum(a != b for a, b in itertools.pairwise(hosts))


def overfull(layers: list, instance: dict, hosts: list) -> list:
    """The nodes whose layers need more than there is, each with these layers."""
    found = []
    for n, node in enumerate(instance["nodes"]):
        mine = [i for i, host in enumerate(hosts) if host == n]
        if any(sum(layers[i][r] for i in mine) > node[r] for r in RESOURCES):
            found.append((n, mine))
    return found


def meets_constraints(layers: list, instance: dict, hosts: list) -> bool:
    """Whether a placement keeps to capacity, tiers and contiguity."""
    runs = [host for host, _ in itertools.groupby(hosts)]
    tiers = [instance["nodes"][host]["tier"] for host in runs]
    contiguous = len(set(runs)) == len(runs)
    return contiguous and tiers == sorted(tiers) and not overfull(layers, instance, hosts)


# --- the integer programme


class Rows:
    """Collects the rows of a sparse matrix."""

    def __init__(self) -> None:
        self.data, self.row, self.column, self.low, self.high = [], [], [], [], []

    def add(self, terms: list, low: float, high: float) -> None:
        """Adds low <= sum of coefficient * variable <= high."""
        for variable, coefficient in terms:
            self.data.append(coefficient)
            self.row.append(len(self.low))
            self.column.append(variable)
        self.low.append(low)
        self.high.append(high)

    def constraint(self, variables: int) -> LinearConstraint:
        shape = (len(self.low), variables)
        matrix = csr_array((self.data, (self.row, self.column)), shape=shape)
        return LinearConstraint(matrix, self.low, self.high)


def in_units(needs: list, there: float) -> tuple:
    """Bytes in the largest unit that divides all needs: one byte too few is then a whole unit."""
    if not all(float(need).is_integer() for need in needs):
        return needs, there
    unit = math.gcd(*(int(need) for need in needs)) or 1
    return [need / unit for need in needs], there // unit


def cheapest_path(costs: dict, layers: int, nodes: int) -> float:
    """The latency if neither capacity nor contiguity bound: the scale of the objective."""
    best = [costs[0, n] for n in range(nodes)]
    for i in range(1, layers):
        best = [
            min(best[n] + costs[i, n, m] for n in range(nodes) if (i, n, m) in costs)
            for m in range(nodes)
        ]
    return min(best)


def solve(
    layers: list,
    instance: dict,
    *,
    capacity: bool = True,
    contiguous: bool = True,
    limit: float = math.inf,
) -> dict:
    """The optimum of an instance, or that there is none.

    x[i, n] is 1 where node n hosts layer i (6.2). y[i, n, m] is 1 where n hosts layer i - 1 and
    m hosts layer i: it flows from x to x, which says 6.7 with fewer and tighter rows, and there is
    none from a tier to an earlier one (6.4). Constraint 6.3 forbids gaps of one layer alone; here
    each node is entered once at most.
    """
    nodes = instance["nodes"]
    count, depth = len(nodes), len(layers)
    start = input_node(instance)
    seconds = [
        [
            layer["execution_probability"] * layer["flops"] / node["flops_per_second"]
            for node in nodes
        ]
        for layer in layers
    ]
    costs = {
        (0, n): seconds[0][n] + hop_seconds(instance, layers[0], start, n) for n in range(count)
    }
    costs |= {(i, n): 0.0 for i in range(1, depth) for n in range(count)}
    integer = len(costs)
    for i, layer in enumerate(layers[1:], 1):
        for n, m in itertools.product(range(count), repeat=2):
            if nodes[n]["tier"] <= nodes[m]["tier"]:
                hop = hop_seconds(instance, layer, n, m)
                costs[i, n, m] = seconds[i][m] + layer["execution_probability"] * hop
    at = {key: variable for variable, key in enumerate(costs)}

    rows = Rows()
    for i in range(depth):
        rows.add([(at[i, n], 1) for n in range(count)], 1, 1)
    for i, n in itertools.product(range(1, depth), range(count)):
        leaving = [(at[i, n, m], 1) for m in range(count) if (i, n, m) in at]
        entering = [(at[i, m, n], 1) for m in range(count) if (i, m, n) in at]
        rows.add([*leaving, (at[i - 1, n], -1)], 0, 0)
        rows.add([*entering, (at[i, n], -1)], 0, 0)
    for n, node in enumerate(nodes):
        if capacity:
            for resource in RESOURCES:
                needs, there = in_units([layer[resource] for layer in layers], node[resource])
                rows.add([(at[i, n], need) for i, need in enumerate(needs)], 0, there)
        if contiguous:
            entries = [
                (at[i, m, n], 1)
                for i in range(1, depth)
                for m in range(count)
                if m != n and (i, m, n) in at
            ]
            rows.add([(at[0, n], 1), *entries], 0, 1)

    scale = SCALE / (cheapest_path(costs, depth, count) or max(costs.values()) or 1)
    objective = np.array(list(costs.values())) * scale
    integrality = np.arange(len(costs)) < integer
    while True:
        options = {"mip_rel_gap": 0} | ({"time_limit": limit} if limit < math.inf else {})
        constraint = rows.constraint(len(costs))
        found = milp(
            objective,
            integrality=integrality,
            bounds=Bounds(0, 1),
            constraints=constraint,
            options=options,
        )
        if found.status == 2:
            return {"infeasible": True}
        if found.status not in (0, 1):
            raise RuntimeError(f"the solver failed: {found.message}")
        if found.x is None:
            return {"proved": False}
        hosts = [max(range(count), key=lambda n, i=i: found.x[at[i, n]]) for i in range(depth)]
        # The solver lets a row be missed by a millionth, bytes don't: such a set is forbidden.
        missed = overfull(layers, instance, hosts) if capacity else []
        if not missed:
            break
        for n, mine in missed:
            rows.add([(at[i, n], 1) for i in mine], 0, len(mine) - 1)

    # The solver's own objective is rounded: what counts is the placement's, in double precision.
    optimum = latency_seconds(layers, instance, hosts)
    proved = optimum * scale - found.mip_dual_bound <= max(TOLERANCE * optimum * scale, 2e-6)
    if capacity and contiguous and not meets_constraints(layers, instance, hosts):
        raise RuntimeError("the solver's placement breaks a constraint")
    return {"optimum_seconds": optimum, "optimum_splits": splits(hosts), "proved": proved}


# --- two other ways to the optimum


def brute_force(layers: list, instance: dict) -> float:
    """The optimum among all placements there are, or infinity."""
    placements = itertools.product(range(len(instance["nodes"])), repeat=len(layers))
    allowed = (hosts for hosts in placements if meets_constraints(layers, instance, hosts))
    return min((latency_seconds(layers, instance, hosts) for hosts in allowed), default=math.inf)


def by_visited_nodes(layers: list, instance: dict) -> float:
    """The optimum by a dynamic programme over layer, last node and nodes visited, or infinity."""
    nodes, depth = instance["nodes"], len(layers)
    states = [{} for _ in range(depth + 1)]
    states[0][None, frozenset()] = 0.0
    for i in range(depth):
        for (last, visited), cost in states[i].items():
            for n, node in enumerate(nodes):
                if n in visited or (last is not None and node["tier"] < nodes[last]["tier"]):
                    continue
                source = input_node(instance) if last is None else last
                weight = 1.0 if i == 0 else layers[i]["execution_probability"]
                total = cost + weight * hop_seconds(instance, layers[i], source, n)
                free = [node[resource] for resource in RESOURCES]
                for j in range(i, depth):
                    free = [
                        f - layers[j][resource]
                        for f, resource in zip(free, RESOURCES, strict=True)
                    ]
                    if min(free) < 0:
                        break
                    total += (
                        layers[j]["execution_probability"]
                        * layers[j]["flops"]
                        / node["flops_per_second"]
                    )
                    state = (n, visited | {n})
                    states[j + 1][state] = min(total, states[j + 1].get(state, math.inf))
    return min(states[depth].values(), default=math.inf)


# --- random instances


def figure(rng: random.Random, low: float, high: float) -> int:
    """A number between two powers of ten, rounded to three digits so that files stay small."""
    return int(float(f"{10 ** rng.uniform(low, high):.3g}"))


def random_layers(rng: random.Random, depth: int) -> list:
    """Layers of which some compute nothing or take no input, with exits in half of all models."""
    layers, probability = [], 1.0
    exits = rng.choice((0, 0, 0.15, 0.4))
    for i in range(depth):
        if i > 0 and rng.random() < exits:
            probability = round(probability * rng.choice((0, *[rng.uniform(0.3, 0.95)] * 20)), 2)
        layers.append(
            {
                "flops": 0 if rng.random() < 0.1 else figure(rng, 6.5, 9.5),
                "memory_bytes": 0 if rng.random() < 0.04 else figure(rng, 5.5, 7.5),
                "storage_bytes": 0 if rng.random() < 0.04 else figure(rng, 5, 7),
                "input_bytes": 0 if rng.random() < 0.1 else figure(rng, 3.5, 6.5),
                "execution_probability": probability,
            }
        )
    return layers


def random_tiers(rng: random.Random, count: int, most: int = 3) -> list:
    """The tier of each node; the numbers may have gaps, and the nodes any order."""
    labels = rng.choice(([0, 1, 2], [0, 1, 2], [1, 4, 9]))[: rng.randint(1, min(most, count))]
    tiers = labels + [rng.choice(labels) for _ in range(count - len(labels))]
    tiers.sort()
    if rng.random() < 0.4:
        rng.shuffle(tiers)
    return tiers


def random_links(
    rng: random.Random, count: int, low: float, high: float, latest_ms: float
) -> tuple:
    """Throughput and latency of each pair of nodes, symmetric in half of all instances."""
    throughput = [
        [None if n == m else figure(rng, low, high) for m in range(count)] for n in range(count)
    ]
    latency = [
        [0 if n == m else round(rng.uniform(0, latest_ms), 1) for m in range(count)]
        for n in range(count)
    ]
    if rng.random() < 0.5:
        for n, m in itertools.combinations(range(count), 2):
            throughput[m][n], latency[m][n] = throughput[n][m], latency[n][m]
    return throughput, latency


def capacity_of_plan(rng: random.Random, layers: list, nodes: list, resource: str) -> None:
    """Capacity that one random plan fits into, often to the byte, and few others do."""
    total = sum(layer[resource] for layer in layers)
    order = sorted(range(len(nodes)), key=lambda n: (nodes[n]["tier"], rng.random()))
    used = sorted(
        rng.sample(order, rng.randint(min(2, len(nodes)), min(len(nodes), len(layers)))),
        key=order.index,
    )
    cuts = [0, *sorted(rng.sample(range(1, len(layers)), len(used) - 1)), len(layers)]
    for node in nodes:
        node[resource] = int(total * rng.uniform(0.05, 0.5))
    for n, (first, end) in zip(used, itertools.pairwise(cuts), strict=True):
        need = sum(layer[resource] for layer in layers[first:end])
        nodes[n][resource] = int(need * rng.choice((1, 1, 1.1, 1.4)))
    if rng.random() < 0.25:
        n = rng.choice(used)
        nodes[n][resource] = max(0, nodes[n][resource] - 1)


def capacity_in_shares(rng: random.Random, layers: list, nodes: list, resource: str) -> None:
    """Capacity for a share of the model per node: several are needed, or all are too few."""
    total = sum(layer[resource] for layer in layers)
    largest = max(layer[resource] for layer in layers)
    parts = rng.uniform(1.2, 0.75 * len(nodes) + 0.6)
    for node in nodes:
        share = total / parts * rng.uniform(0.7, 1.5)
        node[resource] = int(max(share, largest) if rng.random() < 0.8 else share)


def random_instance(rng: random.Random, kind: str, depths: tuple, counts: tuple) -> dict:
    """An instance with layers of its own; the kind says what is likely to bind."""
    depth, count = rng.randint(*depths), rng.randint(*counts)
    layers = random_layers(rng, depth)
    tiers = random_tiers(rng, count, 3 if kind != "hub" else rng.choice((1, 1, 2)))
    nodes = [
        {"name": f"n{n}", "tier": tier, "input": False, "flops_per_second": figure(rng, 8.5, 10.5)}
        for n, tier in enumerate(tiers)
    ]
    rng.choice([node for node in nodes if node["tier"] == min(tiers)])["input"] = True
    throughput, latency = random_links(rng, count, 6, 9, rng.choice((0, 5, 50)))
    ample = {resource: 2 * sum(layer[resource] for layer in layers) + 1 for resource in RESOURCES}
    for node in nodes:
        node.update(ample)

    if kind == "shares":
        capacity_in_shares(rng, layers, nodes, "memory_bytes")
    elif kind == "plan":
        capacity_of_plan(rng, layers, nodes, "memory_bytes")
    elif kind == "storage":
        rng.choice((capacity_of_plan, capacity_in_shares))(rng, layers, nodes, "storage_bytes")
    elif kind == "both":
        for resource in RESOURCES:
            capacity_in_shares(rng, layers, nodes, resource)
    elif kind == "equal":
        # Nodes and links that can't be told apart: many placements are optimal.
        capacity_in_shares(rng, layers, nodes, "memory_bytes")
        for node in nodes:
            node["flops_per_second"] = nodes[0]["flops_per_second"]
            node["memory_bytes"] = nodes[0]["memory_bytes"]
        for n, m in itertools.permutations(range(count), 2):
            throughput[n][m], latency[n][m] = throughput[0][1], latency[0][1]
    elif kind == "hub":
        # A fast node, near to all others, that holds little: heavy layers would return to it.
        hub = rng.randrange(count)
        heavy = rng.randrange(2)
        for i, layer in enumerate(layers):
            small, large = figure(rng, 4, 5.5), figure(rng, 6.8, 7.2)
            layer["flops"] = figure(rng, 9, 10) if i % 2 == heavy else figure(rng, 6, 7)
            layer["memory_bytes"] = small if i % 2 == heavy else large
        capacity_in_shares(rng, layers, nodes, "memory_bytes")
        nodes[hub]["flops_per_second"] = figure(rng, 11, 12)
        light = sum(layer["memory_bytes"] for layer in layers[heavy::2])
        nodes[hub]["memory_bytes"] = int(light * rng.uniform(0.6, 1.5)) + rng.choice((0, 0, 10**7))
        for n in range(count):
            if n != hub:
                throughput[n][hub], throughput[hub][n] = figure(rng, 9, 10), figure(rng, 9, 10)
                latency[n][hub] = latency[hub][n] = rng.choice((0, 0.1))
    return {
        "layers": layers,
        "nodes": nodes,
        "throughput_bits_per_second": throughput,
        "latency_ms": latency,
    }


TIGHT = ("hub", "plan", "shares", "hub", "storage", "plan", "equal", "hub", "both", "ample")


def random_instances(count: int, seed: int, depths: tuple, counts: tuple, *, tight: bool) -> dict:
    """A file of instances. Without `tight`, no capacity binds."""
    rng = random.Random(seed)
    kinds = itertools.cycle(TIGHT if tight else ("ample",))
    return {
        "layers": [],
        "instances": [random_instance(rng, next(kinds), depths, counts) for _ in range(count)],
    }


# --- commands


def layers_of(file: dict, instance: dict) -> list:
    """The layers of an instance: its own, or those of the file."""
    return instance.get("layers") or file["layers"]


def lower(relaxed: dict, solved: dict) -> bool:
    """Whether an optimum with a constraint less is lower."""
    if "infeasible" in relaxed:
        return False
    return relaxed["optimum_seconds"] < solved.get("optimum_seconds", math.inf) * (1 - TOLERANCE)


def solve_all(file: dict, limit: float, *, figures: bool) -> None:
    """Writes the optimum into each instance of a file."""
    times, bind = [], {"capacity": 0, "contiguous": 0}
    for number, instance in enumerate(file["instances"], 1):
        layers = layers_of(file, instance)
        for key in ("optimum_seconds", "optimum_splits", "proved", "infeasible"):
            instance.pop(key, None)
        started = time.perf_counter()
        solved = solve(layers, instance, limit=limit)
        times.append(time.perf_counter() - started)
        instance.update(solved)
        if figures:
            for constraint in bind:
                bind[constraint] += lower(
                    solve(layers, instance, limit=limit, **{constraint: False}), solved
                )
        if number % 50 == 0 or times[-1] > 5:
            print(
                f"{number} of {len(file['instances'])} solved, {sum(times):.1f} s", file=sys.stderr
            )
    infeasible = sum("infeasible" in instance for instance in file["instances"])
    unproved = sum(not instance.get("proved", True) for instance in file["instances"])
    median, most = 1000 * sorted(times)[len(times) // 2], 1000 * max(times)
    print(
        f"{len(times)} instances: {infeasible} without a plan, {unproved} not proved;"
        f" per instance {median:.0f} ms median, {most:.0f} ms at most",
        file=sys.stderr,
    )
    if figures:
        print(
            f"capacity binds in {bind['capacity']}, contiguity in {bind['contiguous']}",
            file=sys.stderr,
        )


def difference(found: float | None, expected: float | None) -> float:
    """How far apart two latencies are: relative, but below a millisecond to a millisecond."""
    if found is None or expected is None:
        return 0.0 if found is expected else math.inf
    return abs(found - expected) / max(abs(found), abs(expected), 1e-3)


def compare(file: dict, results: dict) -> bool:
    """Whether a planner found each optimum, and no plan where there is none."""
    expected, found = file["instances"], results["instances"]
    if len(expected) != len(found) or not expected:
        print(f"error: {len(found)} results for {len(expected)} instances", file=sys.stderr)
        return False
    equal, infeasible, worst, wrong = 0, 0, 0.0, 0
    for number, (instance, result) in enumerate(zip(expected, found, strict=True)):
        optimum, seconds = instance.get("optimum_seconds"), result["latency_seconds"]
        if not instance.get("infeasible") and not instance.get("proved"):
            print(f"instance {number}: the integer programme has no proof", file=sys.stderr)
            wrong += 1
            continue
        apart = difference(seconds, optimum)
        worst = max(worst, apart)
        explained = (
            result.get("proved") is True if seconds is not None else bool(result.get("error"))
        )
        if apart > TOLERANCE or not explained:
            expectation = "no plan" if optimum is None else f"{optimum} s"
            print(
                f"instance {number}: expected {expectation} with proof, got {json.dumps(result)}",
                file=sys.stderr,
            )
            wrong += 1
        elif seconds is None:
            infeasible += 1
        else:
            equal += 1
    print(
        f"{len(expected)} instances: {equal} equal, worst difference {worst:.1e},"
        f" {infeasible} infeasible on both sides{f', {wrong} WRONG' if wrong else ''}"
    )
    return wrong == 0


def self_test(seed: int) -> bool:
    """Whether the integer programme agrees with brute force, and with a dynamic programme."""
    agreed = True
    for name, other, count, depths, counts in (
        ("brute force", brute_force, 200, (2, 6), (2, 4)),
        ("the dynamic programme", by_visited_nodes, 100, (7, 12), (4, 6)),
    ):
        equal, infeasible = 0, 0
        for instance in random_instances(count, seed, depths, counts, tight=True)["instances"]:
            optimum = solve(instance["layers"], instance).get("optimum_seconds")
            expected = other(instance["layers"], instance)
            expected = expected if expected < math.inf else None
            if difference(optimum, expected) > TOLERANCE:
                print(f"{name}: {expected}, the integer programme: {optimum}", file=sys.stderr)
                print(json.dumps(instance), file=sys.stderr)
            else:
                equal += 1
                infeasible += optimum is None
        print(f"{equal} of {count} as {name} has them, {infeasible} of these without a plan")
        agreed = agreed and equal == count
    return agreed


def compact(file: dict) -> str:
    """A file as JSON, an instance per line."""
    layers, *instances = (
        json.dumps(part, separators=(",", ":")) for part in (file["layers"], *file["instances"])
    )
    lines = ",\n".join(instances)
    return f'{{"layers":{layers},"instances":[\n{lines}\n]}}\n'


def interval(text: str) -> tuple:
    """A range such as 2..12."""
    low, _, high = text.partition("..")
    low, high = int(low), int(high or low)
    if not 2 <= low <= high:
        raise ValueError
    return low, high


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "file", nargs="?", type=Path, help="instances to solve, or to compare with"
    )
    parser.add_argument(
        "--output", type=Path, help="where the solved instances go; standard output without it"
    )
    parser.add_argument("--random", type=int, metavar="COUNT", help="make that many instances")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layers", type=interval, default=(2, 12), metavar="2..12")
    parser.add_argument("--nodes", type=interval, default=(2, 6), metavar="2..6")
    parser.add_argument(
        "--tight", action="store_true", help="with capacity that binds in most instances"
    )
    parser.add_argument(
        "--time-limit", type=float, default=math.inf, metavar="SECONDS", help="per instance"
    )
    parser.add_argument(
        "--figures", action="store_true", help="say what binds; takes three times as long"
    )
    parser.add_argument(
        "--compare", type=Path, metavar="RESULTS", help="output of tessera bench placement --json"
    )
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    if arguments.self_test:
        return 0 if self_test(arguments.seed) else 1
    if (arguments.file is None) == (arguments.random is None):
        parser.error("expected either a file or --random COUNT")
    if arguments.random is not None:
        sizes = (arguments.layers, arguments.nodes)
        file = random_instances(arguments.random, arguments.seed, *sizes, tight=arguments.tight)
    else:
        file = json.loads(arguments.file.read_text())
    if arguments.compare:
        return 0 if compare(file, json.loads(arguments.compare.read_text())) else 1
    solve_all(file, arguments.time_limit, figures=arguments.figures)
    text = compact(file)
    if arguments.output:
        arguments.output.write_text(text)
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
