"""Reads a page of metrics: Prometheus' text format, as a server writes it."""

import re
from dataclasses import dataclass, field

LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')


@dataclass
class Family:
    """A metric: its type, its help, and its series with their labels and values."""

    name: str
    kind: str
    help: str
    series: list[tuple[str, dict[str, str], float]] = field(default_factory=list)

    def labels(self) -> list[str]:
        """The labels that it has, in their order; none where it has no series yet."""
        found = {name: None for _, labels, _ in self.series for name in labels if name != "le"}
        return list(found)


class PageError(Exception):
    """A page that is not as the format wants it."""


def read_page(text: str) -> dict[str, Family]:
    """The metrics of a page by name, in their order. Each has a HELP and a TYPE before it."""
    families, helps, family = {}, {}, None
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name, _, said = line.removeprefix("# HELP ").partition(" ")
            helps[name] = said
        elif line.startswith("# TYPE "):
            name, _, kind = line.removeprefix("# TYPE ").partition(" ")
            if not helps.get(name):
                raise PageError(f"{name} has no HELP before its TYPE")
            if name in families:
                raise PageError(f"{name} is there twice")
            family = families[name] = Family(name, kind, helps[name])
        elif line and not line.startswith("#"):
            if family is None:
                raise PageError(f"a series before any TYPE: {line}")
            family.series.append(read_series(line, family))
    return families


def read_series(line: str, family: Family) -> tuple[str, dict[str, str], float]:
    parts = re.fullmatch(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)", line)
    if not parts:
        raise PageError(f"no series: {line}")
    name, labels, value = parts.groups()
    suffixes = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
    if name not in {family.name + suffix for suffix in suffixes}:
        raise PageError(f"{name} stands among the series of {family.name}")
    return name, dict(LABEL.findall(labels or "")), float(value)


def merge_pages(pages: list[dict[str, Family]]) -> dict[str, Family]:
    """The metrics of several pages. What they say of one metric must agree."""
    merged: dict[str, Family] = {}
    for page in pages:
        for name, family in page.items():
            known = merged.setdefault(name, Family(name, family.kind, family.help))
            if (known.kind, known.help) != (family.kind, family.help):
                raise PageError(f"{name} has another TYPE or HELP on another page")
            known.series += family.series
    return merged
