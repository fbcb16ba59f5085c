#!/usr/bin/env python3
"""A placement strategy: stays on a node while there is room, then goes on to the fastest that has some.

Reads the problem as JSON and writes a plan; try it in the root of the repository:
    tessera plan placement examples/plan/placement.yaml --strategy examples/plan/plugin.py
"""
import json, sys

problem = json.load(sys.stdin)
nodes, link = problem["nodes"], problem["throughput_bits_per_second"]
room = [[node.get(what, float("inf")) for what in ("memory_bytes", "storage_bytes")] for node in nodes]
fastest_first = sorted(range(len(nodes)), key=lambda n: -nodes[n].get("flops_per_second", 0))


def place(layers):
    at, left, names = next(n for n, node in enumerate(nodes) if node["input"]), set(), []
    for number, layer in enumerate(layers):
        needs = [layer["memory_bytes"], layer["storage_bytes"]]
        ahead = [n for n in fastest_first if link[at][n] and nodes[n]["tier"] >= nodes[at]["tier"]]
        fits = [n for n in [at, *ahead] if n not in left and all(r >= b for r, b in zip(room[n], needs))]
        if not fits:
            sys.exit(f"no node has room for layer {number} that may follow on {nodes[at]['name']}")
        left |= {at} - {fits[0]}
        at = fits[0]
        room[at] = [r - b for r, b in zip(room[at], needs)]
        names.append(nodes[at]["name"])
    return names


models = problem.get("models")
plan = {"models": [{"name": m["name"], "nodes": place(m["layers"])} for m in models or []]}
json.dump(plan if models else {"nodes": place(problem["layers"])}, sys.stdout)
