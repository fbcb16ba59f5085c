"""What a Grafana dashboard is made of: panels, rows of them, variables.

`board_rows.py` says what is on the board; here is only how Grafana writes it down. Nothing but
Grafana's own kinds of panels is used, in the form of Grafana 10 and 11 (schema 39).
"""

from dataclasses import dataclass, field

# Grafana divides a row into so many columns.
COLUMNS = 24
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass
class Query:
    """An expression in PromQL, and what its series are called."""

    expression: str
    name: str = ""


@dataclass
class Panel:
    """A panel: what it shows, and what to do when that looks bad."""

    title: str
    unit: str
    description: str
    queries: list[Query]
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    stacked: bool = False
    # From which value on a figure is orange, and red.
    orange: float | None = None
    red: float | None = None
    most: float | None = None
    # Columns of a table: name and unit, one for each query.
    columns: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class Row:
    """A row of the board: a question, and panels that answer it."""

    title: str
    panels: list[Panel]
    folded: bool = False


def thresholds(panel: Panel) -> dict:
    steps = [{"color": "green", "value": None}]
    for colour, value in (("orange", panel.orange), ("red", panel.red)):
        if value is not None:
            steps.append({"color": colour, "value": value})
    return {"mode": "absolute", "steps": steps}


def field_defaults(panel: Panel) -> dict:
    defaults = {"unit": panel.unit, "thresholds": thresholds(panel), "min": 0}
    if panel.most is not None:
        defaults["max"] = panel.most
    if panel.kind == "timeseries":
        defaults["color"] = {"mode": "palette-classic"}
        defaults["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 30 if panel.stacked else 5,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        }
    else:
        defaults["color"] = {"mode": "thresholds"}
    return defaults


def options(panel: Panel) -> dict:
    last = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    if panel.kind == "timeseries":
        return {
            "legend": {
                "displayMode": "table",
                "placement": "bottom",
                "showLegend": True,
                "calcs": ["lastNotNull", "max"],
            },
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    if panel.kind == "stat":
        return {
            "reduceOptions": last,
            "colorMode": "value",
            "graphMode": "area",
            "justifyMode": "auto",
            "orientation": "auto",
            "textMode": "auto",
        }
    if panel.kind == "bargauge":
        return {
            "reduceOptions": last,
            "displayMode": "basic",
            "orientation": "horizontal",
            "showUnfilled": True,
            "valueMode": "color",
        }
    return {"showHeader": True, "cellHeight": "sm"}


def letter(index: int) -> str:
    return chr(ord("A") + index)


def targets(panel: Panel) -> list[dict]:
    written = []
    for index, query in enumerate(panel.queries):
        target = {"datasource": SOURCE, "refId": letter(index), "expr": query.expression}
        if query.name:
            target["legendFormat"] = query.name
        if panel.kind == "table":
            target |= {"instant": True, "range": False, "format": "table"}
        elif panel.kind == "bargauge":
            target |= {"instant": True, "range": False}
        else:
            target |= {"instant": False, "range": True}
        written.append(target)
    return written


def column_overrides(panel: Panel) -> list[dict]:
    return [
        {
            "matcher": {"id": "byName", "options": name},
            "properties": [{"id": "unit", "value": unit}],
        }
        for name, unit in panel.columns
    ]


def write_panel(panel: Panel, number: int, x: int, y: int) -> dict:
    written = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": field_defaults(panel), "overrides": column_overrides(panel)},
        "options": options(panel),
        "targets": targets(panel),
    }
    if panel.kind == "table":
        # One line for each value of the labels that all queries have.
        names = {f"Value #{letter(i)}": name for i, (name, _) in enumerate(panel.columns)}
        written["transformations"] = [
            {"id": "merge", "options": {}},
            {
                "id": "organize",
                "options": {"excludeByName": {"Time": True}, "renameByName": names},
            },
        ]
    return written


def write_rows(rows: list[Row]) -> list[dict]:
    """All panels, from left to right and from top to bottom."""
    written, number, y = [], 1, 0
    for row in rows:
        header = {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": row.folded,
            "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
            "panels": [],
        }
        written.append(header)
        number, y = number + 1, y + 1
        x, height = 0, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, height = 0, y + height, 0
            placed = write_panel(panel, number, x, y)
            # Grafana keeps the panels of a folded row within it.
            (header["panels"] if row.folded else written).append(placed)
            number, x, height = number + 1, x + panel.width, max(height, panel.height)
        y += height
    return written


def source_variable() -> dict:
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "options": [],
        "refresh": 1,
        "regex": "",
        "skipUrlSync": False,
    }


def label_variable(name: str, label: str, query: str) -> dict:
    """A variable with the values of a label, of which all are chosen at first."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        # 1 is a query of a label's values.
        "query": {
            "qryType": 1,
            "query": query,
            "refId": "PrometheusVariableQueryEditor-VariableQuery",
        },
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "options": [],
        # Asked anew whenever the span of time changes.
        "refresh": 2,
        "regex": "",
        "sort": 1,
        "hide": 0,
        "skipUrlSync": False,
    }


def write_board(title: str, uid: str, description: str, variables: list, rows: list) -> dict:
    return {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": ["tessera"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "timepicker": {},
        "fiscalYearStartMonth": 0,
        "weekStart": "",
        "liveNow": False,
        "links": [],
        "annotations": {"list": []},
        "templating": {"list": variables},
        "panels": write_rows(rows),
    }
