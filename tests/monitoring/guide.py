"""docs/monitoring.md: whether it has what it promises, and what others link to."""

import re
import subprocess
import tempfile

import yaml

import board
import make_board  # noqa: F401  board has put its folder on the path
import metrics_table
import rules

GUIDE = metrics_table.GUIDE


def headings(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    bare = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"^#+ (.*)$", bare, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def check(text: str, the_board: dict, the_rules: list[dict]) -> list[str]:
    """Rows of the board and alerts that it says nothing of, and alerts that are gone."""
    anchors = headings(text)
    complaints = [
        f"nothing of the row {row!r}"
        for row in dict.fromkeys(row for row, _ in board.panels(the_board))
        if f"**{row}**" not in text
    ]
    named = {alert["alert"] for alert in rules.alerts(the_rules)}
    complaints += [f"no heading {name}" for name in sorted(named) if name.lower() not in anchors]
    told = set(re.findall(r"^### (Tessera\w+)$", text, re.MULTILINE))
    complaints += [f"there is no alert {name}" for name in sorted(told - named)]
    return complaints


def check_names(text: str, names: set[str]) -> list[str]:
    """Metrics that the tables lack, and rows of metrics that are gone."""
    told = set(re.findall(r"^\| `(\w+)`", metrics_table.tables_in(text), re.MULTILINE))
    complaints = [f"the tables lack {name}" for name in sorted(names - told)]
    return complaints + [f"there is no metric {name}" for name in sorted(told - names)]


def check_tables(text: str, families: dict) -> list[str]:
    """Whether the tables are what metrics_table.py writes of these metrics."""
    told, expected = metrics_table.tables_in(text), metrics_table.write_tables(families)
    if told.strip() == expected.strip():
        return []
    told, expected = set(told.splitlines()), set(expected.splitlines())
    complaints = [f"a line too many: {line}" for line in sorted(told - expected)]
    complaints += [f"a line is missing: {line}" for line in sorted(expected - told)]
    return [*complaints, "scripts/test-monitoring BINARY --write-tables writes them anew"]


def without_kubernetes(block: str) -> str:
    """A configuration without how targets are found in Kubernetes: Debian's Prometheus is built
    without that."""
    configuration = yaml.safe_load(block)
    for job in configuration["scrape_configs"]:
        job.pop("kubernetes_sd_configs", None)
    return yaml.safe_dump(configuration)


def check_configurations(text: str, promtool: str) -> list[str]:
    """Whether Prometheus takes the scrape configurations that it shows."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    shown = [block for block in blocks if "scrape_configs:" in block]
    complaints = [] if shown else ["no scrape configuration is shown"]
    for block in shown:
        block = without_kubernetes(block)
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
            file.write(block)
            file.flush()
            command = [promtool, "check", "config", "--syntax-only", file.name]
            ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if ran.returncode != 0:
            complaints.append(f"promtool check config: {ran.stdout}{ran.stderr}\n{block}")
    return complaints
