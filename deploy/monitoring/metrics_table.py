#!/usr/bin/env -S python3 -B
"""Writes the tables of all metrics into docs/monitoring.md, from pages that servers gave.

    metrics_table.py PAGE …            prints the tables
    metrics_table.py --write PAGE …    writes them between the two marks of docs/monitoring.md

`scripts/test-monitoring BINARY --write-tables` gets the pages from a server, and does it.
"""

import pathlib
import sys

from metrics_page import Family, merge_pages, read_page

GUIDE = pathlib.Path(__file__).resolve().parents[2] / "docs/monitoring.md"
BEGIN = "<!-- metrics: written by deploy/monitoring/metrics_table.py -->"
END = "<!-- metrics: end -->"

# Headings, and how the names of metrics below them begin; the longest beginning counts.
GROUPS = {
    "Requests, as Triton tells them": ["nv_inference_"],
    "Tasks": ["tessera_task_", "tessera_request", "tessera_exits_", "tessera_degraded_"],
    "Units": ["tessera_unit_"],
    "Weights that come and go": [
        "tessera_unit_weight_",
        "tessera_unit_residency",
        "tessera_weight_memory_",
    ],
    "Processes": ["tessera_process_"],
    "GPUs, and units on them": ["nv_gpu_", "nv_energy_", "tessera_gpu_", "tessera_unit_gpu_"],
    "The server": ["tessera_"],
}


def group_of(name: str) -> str:
    """The heading that a metric stands below."""
    fitting = [
        (len(beginning), heading)
        for heading, beginnings in GROUPS.items()
        for beginning in beginnings
        if name.startswith(beginning)
    ]
    if not fitting:
        raise ValueError(f"{name} is in no group of metrics_table.py: add a beginning of its name")
    return max(fitting)[1]


def write_table(families: list[Family]) -> list[str]:
    lines = ["| metric | type | labels | |", "|---|---|---|---|"]
    for family in families:
        labels = ", ".join(f"`{label}`" for label in family.labels())
        said = family.help.replace("|", "\\|")
        lines.append(f"| `{family.name}` | {family.kind} | {labels} | {said} |")
    return lines


def write_tables(families: dict[str, Family]) -> str:
    """All tables with their headings, as Markdown."""
    lines = []
    for heading in GROUPS:
        below = [family for name, family in families.items() if group_of(name) == heading]
        if below:
            lines += [f"### {heading}", "", *write_table(below), ""]
    return "\n".join(lines)


def tables_in(text: str) -> str:
    """What stands between the marks."""
    return text.split(BEGIN, 1)[1].split(END, 1)[0].strip("\n") + "\n"


def replace_tables(text: str, tables: str) -> str:
    before, rest = text.split(BEGIN, 1)
    return f"{before}{BEGIN}\n\n{tables}\n{END}{rest.split(END, 1)[1]}"


def main() -> int:
    arguments = sys.argv[1:]
    write = arguments[:1] == ["--write"]
    paths = arguments[write:]
    if not paths or paths[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    pages = [read_page(pathlib.Path(path).read_text()) for path in paths]
    tables = write_tables(merge_pages(pages))
    if write:
        GUIDE.write_text(replace_tables(GUIDE.read_text(), tables))
    else:
        print(tables)
    return 0


if __name__ == "__main__":
    sys.exit(main())
