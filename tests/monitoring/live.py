"""Asks a Prometheus everything that the board and the rules ask."""

import math
import re

import board
import promql
from prometheus import Prometheus

# What Grafana puts in the place of a board's variables: all is chosen.
CHOSEN = {"host": ".*", "task": ".*", "unit": ".*", "__rate_interval": "20s"}

# Panels that have to show what happened, not only something: the largest value is above zero.
MUST_MOVE = {
    "Answers per second",
    "Not answered",
    "Refused, by task",
    "Restarts in an hour",
    "Restarts, by unit",
    "Degraded and sent again",
    "Where the time of a request goes",
    "Rows that leave at exits, per second",
    "Share of rows that leave",
    "Memory that nobody else holds, by unit",
    "Uses without a load",
    "Loads and evictions per second",
    "Time of a load, mean",
    "Weights of a unit",
    "Spans that no collector got",
}
# Alerts for which there is a reason here; `pending`, as none of them lasts.
EXPECTED_ALERTS = {"TesseraRefuses", "TesseraFails"}

# Panels that put the GPU that was made up beside servers that answer: two hosts here.
OF_SEVERAL_HOSTS = {"Energy of an answer"}


def check_board(prometheus: Prometheus, the_board: dict) -> tuple[int, list[str]]:
    """How many queries were asked, and those without an answer that says something."""
    complaints, moved = [], set()
    queries = board.queries(the_board)
    for query in queries:
        values = ask(prometheus, promql.substitute(query.expression, CHOSEN))
        if isinstance(values, str):
            complaints.append(f"{query.place()}: {values}: {query.expression}")
        elif max(values) > 0:
            moved.add(query.panel)
    titles = {query.panel for query in queries}
    complaints += [f"there is no panel {title!r}" for title in sorted(MUST_MOVE - titles)]
    complaints += [f"{title}: nothing moved" for title in sorted((MUST_MOVE & titles) - moved)]
    return len(queries), complaints


def ask(prometheus: Prometheus, expression: str) -> list[float] | str:
    """The numbers of an answer, or why there are none."""
    try:
        values = prometheus.values(expression)
    except RuntimeError as error:
        return str(error)
    if not values:
        return "no answer"
    return [value for value in values if math.isfinite(value)] or "only NaN or infinity"


def check_variables(prometheus: Prometheus, the_board: dict) -> list[str]:
    """Variables that have nothing to choose from."""
    complaints = []
    for name, definition in board.variables(the_board).items():
        selector, label = re.fullmatch(r"label_values\((.*), *(\w+)\)", definition).groups()
        values = prometheus.label_values(promql.substitute(selector, CHOSEN), label)
        if len(values) < 2:
            complaints.append(f"variable {name}: {sorted(values)} to choose from")
    return complaints


def check_one_choice(prometheus: Prometheus, the_board: dict, chosen: dict) -> list[str]:
    """What is shown where one host, one task and one unit are chosen: series of no other."""
    complaints = []
    labels = {"host": ["instance"], "task": ["task", "model"], "unit": ["unit"]}
    for query in board.queries(the_board):
        heeded = [variable for variable in chosen if f"${variable}" in query.expression]
        for selector in promql.selectors(promql.substitute(query.expression, CHOSEN | chosen)):
            for variable in heeded:
                for label in labels[variable]:
                    found = prometheus.label_values(selector, label)
                    if others := found - {chosen[variable], "server"}:
                        complaints.append(f"{query.place()}: also shows {sorted(others)}")
    return complaints


def check_each_choice(prometheus: Prometheus, the_board: dict) -> list[str]:
    """Queries that have no answer as soon as one host, one task or one unit is chosen: a label
    that a metric does not have is only noticed then."""
    complaints = []
    for variable, label in {"host": "instance", "task": "task", "unit": "unit"}.items():
        values = sorted(set(prometheus.get(f"label/{label}/values")) - {"server"})
        for query in board.queries(the_board):
            if f"${variable}" not in query.expression or query.panel in OF_SEVERAL_HOSTS:
                continue
            chosen = (CHOSEN | {variable: value} for value in values)
            asked = (promql.substitute(query.expression, choice) for choice in chosen)
            if all(isinstance(ask(prometheus, expression), str) for expression in asked):
                complaints.append(f"{query.place()}: no {variable} has an answer alone")
    return complaints


def check_rules(prometheus: Prometheus, rules: list[dict]) -> tuple[int, list[str]]:
    """How many selectors were asked; those without series, and rules that can't be computed."""
    complaints, asked = [], 0
    for rule in rules:
        for selector in promql.selectors(rule["expr"]):
            asked += 1
            values = ask(prometheus, f"last_over_time({selector}[1m])")
            if isinstance(values, str):
                name = rule.get("alert") or rule["record"]
                complaints.append(f"{name}: {selector}: {values}")
    for group in prometheus.get("rules")["groups"]:
        for rule in group["rules"]:
            if rule["health"] != "ok":
                complaints.append(f"{rule['name']}: {rule['health']}: {rule.get('lastError')}")
    active = {one["labels"]["alertname"] for one in prometheus.get("alerts")["alerts"]}
    complaints += [f"{name} does not fire" for name in sorted(EXPECTED_ALERTS - active)]
    return asked, complaints
