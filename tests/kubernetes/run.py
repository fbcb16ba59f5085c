"""Holds what is in deploy/ to Kubernetes' schemas, to itself and to a binary.

Without Kubernetes: what a cluster would do with the objects is not seen here."""

import argparse
import copy
import pathlib
import shutil
import subprocess
import sys
import time

import yaml

import breakages
import checks
import kustomize
import rehearsal

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/tessera"
# Another name than that of the kustomization, which must not be written anywhere.
RELEASE = ["tessera", str(CHART), "--namespace", "models"]
# Values that the chart has to refuse, with what it should say.
REFUSED = [
    (["controller.replicas=3"], "more than one needs etcd.endpoints"),
    (["image.tag=latest"], "image.tag"),
    (["gateway.service.type=External"], "gateway.service.type"),
    (["node.cores=4"], "cores"),
    (["join.tokensSecret=a", "node.storage.type=emptyDir"], "expected storage.type hostPath"),
    (["access.controllerTokensSecret=a"], "expected join.bearerSecret"),
]
# Secrets that the operator makes; those of ci/ and of the overlay.
OTHERS = {
    "tessera-etcd-tls",
    "etcd-client",
    "control-tokens",
    "client-tokens",
    "join-bearer",
    "control-certificate",
    "client-certificate",
    "node-tokens",
}


class Report:
    """What was found, and how much was looked at."""

    def __init__(self):
        self.complaints = []

    def add(self, where: str, complaints: list[str]) -> None:
        print(f"{'FAILED' if complaints else 'ok':8}{where}")
        for complaint in complaints:
            print(f"        {complaint}")
        self.complaints += complaints


def run(*words: str, check: bool = True) -> subprocess.CompletedProcess:
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60)
    if check and ended.returncode != 0:
        sys.exit(f"FAILED  {' '.join(words)}:\n{ended.stderr or ended.stdout}")
    return ended


def parse(text: str) -> list[dict]:
    return [found for found in yaml.safe_load_all(text) if found]


def render_all(helm: str | None) -> dict[str, list[dict]]:
    """All sets of objects that there are, by what they are of."""
    made = parse(run(str(ROOT / "deploy/kubernetes/make-secrets")).stdout)
    sets = {}
    for folder in ("base", "overlays/etcd"):
        objects = kustomize.render(ROOT / "deploy/kubernetes" / folder)
        sets[f"kustomize {folder}"] = objects + copy.deepcopy(made)
    if helm:
        sets["helm"] = parse(run(helm, "template", *RELEASE).stdout)
        for values in sorted((CHART / "ci").glob("*.yaml")):
            rendered = run(helm, "template", *RELEASE, "--values", str(values)).stdout
            sets[f"helm {values.name}"] = parse(rendered)
    return sets


def check_objects(
    objects: list[dict], binary: checks.BinaryFlags | None, missing: set[str]
) -> list[str]:
    complaints = list(checks.check_schemas(objects))
    if complaints:
        # The other checks rely on what schemas promise.
        return complaints
    complaints = [found for check in checks.CHECKS for found in check(objects)]
    complaints += checks.check_secrets(objects, OTHERS)
    if binary:
        complaints += checks.check_flags(objects, binary, missing)
    return complaints


def check_breakages(objects: list[dict], binary: checks.BinaryFlags | None) -> list[str]:
    """Objects that are broken must be noticed."""
    tried = breakages.BREAKAGES + breakages.SECRET_BREAKAGES
    tried += breakages.FLAG_BREAKAGES if binary else []
    complaints = []
    for breakage in tried:
        broken = copy.deepcopy(objects)
        breakage(broken)
        if broken == objects:
            complaints.append(f"{breakage.__name__} breaks nothing")
        if not check_objects(broken, binary, set()):
            complaints.append(f"{breakage.__name__} is not noticed")
    return complaints


def compare_with_kustomize(sets: dict[str, list[dict]]) -> list[str] | None:
    """Whether the real kustomize renders the same; nothing where there is none."""
    if shutil.which("kustomize"):
        command = ["kustomize", "build"]
    elif shutil.which("kubectl"):
        command = ["kubectl", "kustomize"]
    else:
        return None
    complaints = []
    for folder in ("base", "overlays/etcd"):
        theirs = parse(run(*command, str(ROOT / "deploy/kubernetes" / folder)).stdout)
        ours = [o for o in sets[f"kustomize {folder}"] if o["kind"] != "Secret"]
        order = lambda found: (found["kind"], found["metadata"]["name"])
        if sorted(ours, key=order) != sorted(theirs, key=order):
            complaints.append(f"{folder}: kustomize renders something else than kustomize.py")
    return complaints


def compare_with_chart(base: list[dict], chart: list[dict]) -> list[str]:
    """The chart as it comes has the objects of the base, with the same containers."""
    listed = lambda objects: {checks.name_of(o) for o in objects if o["kind"] != "Namespace"}
    complaints = [f"only one has {found}" for found in sorted(listed(base) ^ listed(chart))]
    for ours in checks.workloads(base):
        theirs = next(o for o in chart if checks.name_of(o) == checks.name_of(ours))
        for one, other in zip(checks.containers(ours), checks.containers(theirs), strict=True):
            for field in sorted(set(one) | set(other)):
                if field == "imagePullPolicy":
                    continue
                a, b = one.get(field), other.get(field)
                # The chart says some flags that have the same value by themselves.
                if field == "args" and one["name"] in ("controller", "node"):
                    a, b = set(a), {word for word in b if word in set(a)}
                if a != b:
                    complaints.append(f"{checks.name_of(ours)}: {one['name']}: {field} differs")
        for field in ("securityContext", "terminationGracePeriodSeconds", "volumes"):
            a, b = (o["spec"]["template"]["spec"].get(field) for o in (ours, theirs))
            if a != b:
                complaints.append(f"{checks.name_of(ours)}: {field} differs")
    return complaints


def check_chart(helm: str) -> list[str]:
    """`helm lint --strict` with all values, and values that are refused."""
    complaints = []
    for values in [CHART / "values.yaml", *sorted((CHART / "ci").glob("*.yaml"))]:
        linted = run(helm, "lint", "--strict", str(CHART), "--values", str(values), check=False)
        if linted.returncode != 0:
            complaints.append(f"helm lint with {values.name}: {linted.stdout}{linted.stderr}")
    for settings, reason in REFUSED:
        flags = [word for setting in settings for word in ("--set", setting)]
        refused = run(helm, "template", *RELEASE, *flags, check=False)
        if refused.returncode == 0 or reason not in refused.stderr:
            complaints.append(f"{settings} should be refused with {reason!r}: {refused.stderr}")
    readme = (CHART / "README.md").read_text()
    with open(CHART / "values.yaml") as file:
        for name in value_names(yaml.safe_load(file)):
            if f"`{name}`" not in readme:
                complaints.append(f"README.md of the chart says nothing of `{name}`")
    return complaints


def value_names(values: dict, before: str = "") -> list[str]:
    """The values that can be set, with their whole names."""
    names = []
    for name, value in values.items():
        whole = before + name
        is_group = isinstance(value, dict) and value and name not in ("resources", "nodePools")
        names += value_names(value, f"{whole}.") if is_group else [whole]
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--helm")
    parser.add_argument("--tessera")
    arguments = parser.parse_args()
    began = time.monotonic()
    report, missing = Report(), set()
    binary = checks.BinaryFlags(arguments.tessera) if arguments.tessera else None
    sets = render_all(arguments.helm)
    for name, objects in sets.items():
        report.add(f"{name}: {len(objects)} objects", check_objects(objects, binary, missing))
    base = sets["kustomize base"]
    report.add("broken objects are noticed", check_breakages(base, binary))
    compared = compare_with_kustomize(sets)
    if compared is None:
        print("*** no kustomize or kubectl here: that it renders the same is SKIPPED ***")
    else:
        report.add("kustomize renders the same", compared)
    if arguments.helm:
        report.add("the chart lints, and refuses what is wrong", check_chart(arguments.helm))
        report.add("the chart has what the base has", compare_with_chart(base, sets["helm"]))
    if missing:
        print(f"*** the binary has no {', '.join(sorted(missing))}: SKIPPED ***")
    if arguments.tessera and not report.complaints:
        for name in [name for name in ("kustomize base", "helm") if name in sets]:
            try:
                rehearsal.rehearse(sets[name], arguments.tessera)
                report.add(f"{name}: its commands run here", [])
            except (rehearsal.RehearsalError, OSError, subprocess.TimeoutExpired) as error:
                report.add(f"{name}: its commands run here", [str(error)])
    failed = f"{len(report.complaints)} complaints" if report.complaints else "all is well"
    print(f"{failed}; {time.monotonic() - began:.1f} s")
    return 1 if report.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
