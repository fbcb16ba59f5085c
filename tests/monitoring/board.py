"""The board as Grafana gets it: whether it is whole, and what it asks for."""

import json
import pathlib
import re
import sys
from dataclasses import dataclass

import promql

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "deploy/monitoring"))

import make_board  # noqa: E402

# Panels that Grafana has itself, and the units that are used here.
KINDS = {"row", "timeseries", "stat", "table", "bargauge"}
UNITS = {
    "none",
    "reqps",
    "cps",
    "percentunit",
    "s",
    "µs",
    "decbytes",
    "Bps",
    "watt",
    "joule",
    "hertz",
    "celsius",
}
# A description says what is bad and what to do: that takes more than some words.
LEAST_DESCRIPTION = 40


@dataclass
class BoardQuery:
    """A query of a panel."""

    row: str
    panel: str
    expression: str

    def place(self) -> str:
        return f"{self.row}: {self.panel}"


def load() -> dict:
    return json.loads(make_board.BOARD.read_text())


def panels(board: dict) -> list[tuple[str, dict]]:
    """All panels but rows, each with the title of its row."""
    found, row = [], ""
    for panel in board["panels"]:
        if panel["type"] == "row":
            row = panel["title"]
            found += [(row, inner) for inner in panel["panels"]]
        else:
            found.append((row, panel))
    return found


def queries(board: dict) -> list[BoardQuery]:
    return [
        BoardQuery(row, panel["title"], target["expr"])
        for row, panel in panels(board)
        for target in panel["targets"]
    ]


def variables(board: dict) -> dict[str, str]:
    """The variables that ask Prometheus, with their queries."""
    listed = board["templating"]["list"]
    return {one["name"]: one["definition"] for one in listed if one["type"] == "query"}


def check(board: dict) -> list[str]:
    """Complaints about the board itself."""
    complaints = []
    if make_board.BOARD.read_text() != make_board.board_text():
        complaints.append("grafana-board.json is not what make_board.py writes: run it")
    numbers = [panel["id"] for panel in board["panels"]]
    numbers += [inner["id"] for panel in board["panels"] for inner in panel.get("panels", [])]
    if len(set(numbers)) != len(numbers):
        complaints.append("two panels have the same number")
    known = {one["name"] for one in board["templating"]["list"]} | {"__rate_interval"}
    for row, panel in panels(board):
        complaints += [f"{row}: {panel['title']}: {wrong}" for wrong in check_panel(panel, known)]
    complaints += overlaps(board)
    return complaints


def check_panel(panel: dict, known: set[str]) -> list[str]:
    wrong = []
    if panel["type"] not in KINDS:
        wrong.append(f"{panel['type']} is no panel of Grafana's own")
    if len(panel["description"]) < LEAST_DESCRIPTION:
        wrong.append("the description does not say what to do")
    units = [panel["fieldConfig"]["defaults"]["unit"]]
    for override in panel["fieldConfig"]["overrides"]:
        units += [one["value"] for one in override["properties"] if one["id"] == "unit"]
    wrong += [f"{unit} is no unit that is known here" for unit in units if unit not in UNITS]
    if panel["datasource"]["uid"] != "${datasource}":
        wrong.append("it does not ask the datasource that was chosen")
    if len(panel["targets"]) > 1 and panel["type"] != "table":
        wrong += ["a series has no name" for t in panel["targets"] if not t.get("legendFormat")]
    if panel["type"] == "table" and len(panel["targets"]) != len(panel["fieldConfig"]["overrides"]):
        wrong.append("a query has no column")
    for target in panel["targets"]:
        used = set(re.findall(r"\$([a-z_]\w*)", target["expr"]))
        wrong += [f"there is no variable {name}" for name in used - known]
        if not used & {"host"}:
            wrong.append("a query does not heed the host that was chosen")
    return wrong


def overlaps(board: dict) -> list[str]:
    """Panels of which one covers another."""
    taken, complaints = {}, []
    for row, panel in panels(board):
        place = panel["gridPos"]
        if place["x"] + place["w"] > 24:
            complaints.append(f"{row}: {panel['title']} is wider than the board")
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                other = taken.setdefault((x, y), panel)
                if other is not panel:
                    complaints.append(f"{panel['title']} covers {other['title']}")
                    return complaints
    return complaints


def check_metrics(board: dict, names: set[str]) -> list[str]:
    """Queries of metrics that nobody tells."""
    asked = [(query.place(), query.expression) for query in queries(board)]
    asked += [
        (f"variable {name}", re.sub(r"^label_values\((.*), *\w+\)$", r"\1", definition))
        for name, definition in variables(board).items()
    ]
    return [
        f"{place}: nobody tells {metric}"
        for place, expression in asked
        for metric in promql.unknown_metrics(expression, names)
    ]
