"""What an expression of PromQL asks for: its selectors, and metrics that nobody tells.

No parser: strings and lists of labels are taken out, and what is left that is no function, no
number and no keyword is a metric."""

import re

KEYWORDS = {
    "and",
    "or",
    "unless",
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
    "bool",
    "offset",
    "start",
    "end",
    "inf",
    "nan",
}
# Ranges, and what has a list of labels behind it.
ASIDE = re.compile(r"\[[^\]\"]*\]|\b(by|without|on|ignoring|group_left|group_right)\s*\([^()]*\)")
TOKEN = re.compile(
    r"""
    (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)\s*
      (?: (?P<call>\() | (?P<matchers>\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\}) )?
    | (?P<number>[0-9][0-9a-zA-Z_.]*)
    """,
    re.VERBOSE,
)


def selectors(expression: str) -> list[str]:
    """The selectors of an expression, without ranges, each once."""
    found = {}
    for token in TOKEN.finditer(ASIDE.sub(" ", expression)):
        name = token["name"]
        if name and not token["call"] and name.lower() not in KEYWORDS:
            found[name + (token["matchers"] or "")] = None
    return list(found)


def unknown_metrics(expression: str, known: set[str]) -> list[str]:
    """The metrics that an expression names and nobody knows; histograms have several names."""
    found = []
    for selector in selectors(expression):
        name = selector.partition("{")[0]
        if name not in known and re.sub(r"_(bucket|sum|count)$", "", name) not in known:
            found.append(name)
    return list(dict.fromkeys(found))


def substitute(expression: str, variables: dict[str, str]) -> str:
    """Puts values in the place of a board's variables."""
    for name in sorted(variables, key=len, reverse=True):
        expression = expression.replace(f"${name}", variables[name])
    return expression
