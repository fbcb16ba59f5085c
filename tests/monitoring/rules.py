"""The rules: whether each alert says what it has to, and is tested."""

import pathlib
import subprocess

import yaml

import promql

ROOT = pathlib.Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy/monitoring/alerts.yaml"
TESTS = pathlib.Path(__file__).resolve().parent / "alert-tests.yaml"
SEVERITIES = {"critical", "warning", "info"}
# What Prometheus tells of its targets itself.
OF_PROMETHEUS = {"up"}


def load() -> list[dict]:
    """All rules, recording ones and alerts."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts(rules: list[dict]) -> list[dict]:
    return [rule for rule in rules if "alert" in rule]


def check(rules: list[dict]) -> list[str]:
    """Complaints about what alerts say."""
    complaints = []
    for alert in alerts(rules):
        name, said = alert["alert"], alert.get("annotations", {})
        for wanted in ("summary", "description", "runbook_url"):
            if not said.get(wanted):
                complaints.append(f"{name} has no {wanted}")
        if alert.get("labels", {}).get("severity") not in SEVERITIES:
            complaints.append(f"{name}: severity is none of {', '.join(sorted(SEVERITIES))}")
        expected = f"docs/monitoring.md#{name.lower()}"
        if said.get("runbook_url") != expected:
            complaints.append(f"{name}: runbook_url is not {expected}")
    return complaints


def check_metrics(rules: list[dict], names: set[str]) -> list[str]:
    """Expressions with metrics that nobody tells or records."""
    known = names | OF_PROMETHEUS | {rule["record"] for rule in rules if "record" in rule}
    return [
        f"{rule.get('alert') or rule['record']}: nobody tells {metric}"
        for rule in rules
        for metric in promql.unknown_metrics(rule["expr"], known)
    ]


def check_tested(rules: list[dict], tests: list[dict]) -> list[str]:
    """Alerts without a case in which they fire, or without one in which they do not."""
    fires, silent = set(), set()
    for test in tests:
        for case in test["alert_rule_test"]:
            (fires if case["exp_alerts"] else silent).add(case["alertname"])
    names = [alert["alert"] for alert in alerts(rules)]
    complaints = [f"{name}: no test in which it fires" for name in names if name not in fires]
    complaints += [f"{name}: no test in which it is silent" for name in names if name not in silent]
    return complaints


def load_tests() -> list[dict]:
    return yaml.safe_load(TESTS.read_text())["tests"]


def run_promtool(promtool: str) -> list[str]:
    """What promtool says of the rules and their tests, where something is wrong."""
    complaints = []
    for words in (["check", "rules", str(RULES)], ["test", "rules", str(TESTS)]):
        ran = subprocess.run([promtool, *words], capture_output=True, text=True, timeout=60)
        if ran.returncode != 0:
            complaints.append(f"promtool {words[0]} rules: {ran.stdout}{ran.stderr}")
    return complaints
