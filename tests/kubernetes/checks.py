"""What must hold of objects beyond Kubernetes' schemas. Each check gives the complaints it has."""

import functools
import json
import re
import shlex
import subprocess
from collections.abc import Iterator

import kubernetes_validate
import kubernetes_validate.utils

# The oldest version that the chart is for, and the newest with schemas here.
VERSIONS = ["1.27", "1.37"]

# What is answered without a token, and by which port (docs/cluster.md, "Probes").
PROBE_PATHS = {
    "http": {"/v2/health/live", "/v2/health/ready"},
    "control": {"/health/live", "/health/ready"},
    "metrics": {"/health/live", "/health/ready"},
}

# Ports that a role listens on, by the flag that says so.
PORT_FLAGS = {
    "controller": {"--control": "control", "--listen": "cluster"},
    "node": {"--http": "http", "--grpc": "grpc", "--metrics": "metrics"},
}

# Before SIGTERM, and after the requests are done: see docs/kubernetes.md.
CLOSING_SECONDS = 5


def name_of(found: dict) -> str:
    return f"{found['kind']} {found['metadata']['name']}"


def workloads(objects: list[dict]) -> list[dict]:
    return [found for found in objects if found["kind"] in ("StatefulSet", "DaemonSet")]


def containers(workload: dict) -> list[dict]:
    spec = workload["spec"]["template"]["spec"]
    return spec.get("initContainers", []) + spec["containers"]


def matches(selector: dict, labels: dict) -> bool:
    return all(labels.get(key) == value for key, value in selector.items())


def selected(objects: list[dict], found: dict, selector: dict) -> list[dict]:
    """The workloads whose pods a selector of `found` selects."""
    same = found["metadata"].get("namespace")
    return [
        workload
        for workload in workloads(objects)
        if workload["metadata"].get("namespace") == same
        and matches(selector, workload["spec"]["template"]["metadata"]["labels"])
    ]


def port_names(workload: dict) -> dict[str, int]:
    """The ports of a workload's pods, by name."""
    ports = [port for container in containers(workload) for port in container.get("ports", [])]
    return {port["name"]: port["containerPort"] for port in ports}


def check_schemas(objects: list[dict]) -> Iterator[str]:
    for found in objects:
        for version in VERSIONS:
            complaint = schema_complaint(json.dumps(found), version)
            if complaint:
                yield f"{name_of(found)}: {complaint} (Kubernetes {version})"


# The library reads the schemas of all kinds anew for each object.
kubernetes_validate.utils.schema_contents = functools.cache(
    kubernetes_validate.utils.schema_contents
)


# Most objects are looked at many times.
@functools.cache
def schema_complaint(document: str, version: str) -> str | None:
    """What is wrong with an object, where something is."""
    try:
        kubernetes_validate.validate(json.loads(document), version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{'.'.join(str(part) for part in error.path)}: {error.message[:300]}"
    except kubernetes_validate.SchemaNotFoundError as error:
        return error.message
    return None


def check_names(objects: list[dict]) -> Iterator[str]:
    """No two objects are called alike, and all that belong to a namespace say to which."""
    seen = set()
    for found in objects:
        metadata = found["metadata"]
        key = (found["kind"], metadata.get("namespace"), metadata["name"])
        if key in seen:
            yield f"{name_of(found)}: there are two"
        seen.add(key)
        if found["kind"] != "Namespace" and not metadata.get("namespace"):
            yield f"{name_of(found)}: it says no namespace"


def check_selectors(objects: list[dict]) -> Iterator[str]:
    """What selects pods selects some, and a workload those of its own."""
    for found in objects:
        spec = found.get("spec", {})
        match found["kind"]:
            case "StatefulSet" | "DaemonSet":
                labels = spec["template"]["metadata"]["labels"]
                if not matches(spec["selector"]["matchLabels"], labels):
                    yield f"{name_of(found)}: its selector does not match its pods"
                twins = selected(objects, found, spec["selector"]["matchLabels"])
                if len(twins) > 1:
                    yield f"{name_of(found)}: its selector matches pods of others, too"
                continue
            case "Service":
                selector = spec["selector"]
            case "PodDisruptionBudget":
                selector = spec["selector"]["matchLabels"]
            case "NetworkPolicy":
                selector = spec["podSelector"]["matchLabels"]
                for rule in spec["ingress"]:
                    for peer in rule.get("from", []):
                        if "namespaceSelector" in peer:
                            continue
                        if not selected(objects, found, peer["podSelector"]["matchLabels"]):
                            yield f"{name_of(found)}: nobody has the labels {peer}"
            case _:
                continue
        if not selected(objects, found, selector):
            yield f"{name_of(found)}: it selects no pods"


def check_ports(objects: list[dict]) -> Iterator[str]:
    """Ports of Services, policies, probes and annotations are ports of containers."""
    for found in objects:
        if found["kind"] == "Service":
            for workload in selected(objects, found, found["spec"]["selector"]):
                known = port_names(workload)
                for port in found["spec"]["ports"]:
                    if known.get(port["targetPort"]) != port["port"]:
                        yield f"{name_of(found)}: {name_of(workload)} has no port {port}"
        if found["kind"] == "NetworkPolicy":
            chosen = selected(objects, found, found["spec"]["podSelector"]["matchLabels"])
            known = {name for workload in chosen for name in port_names(workload)}
            for rule in found["spec"]["ingress"]:
                for port in rule.get("ports", []):
                    if port["port"] not in known:
                        yield f"{name_of(found)}: there is no port {port['port']}"
    for workload in workloads(objects):
        known = port_names(workload)
        annotations = workload["spec"]["template"]["metadata"].get("annotations", {})
        scraped = annotations.get("prometheus.io/port")
        if scraped and int(scraped) != known.get("metrics"):
            yield f"{name_of(workload)}: port {scraped} has no metrics"
        for container in containers(workload):
            role = role_of(container)
            for flag, port in PORT_FLAGS.get(role, {}).items():
                value = value_of(container, flag)
                if value and known.get(port) != int(value.rsplit(":", 1)[-1]):
                    if flag != "--listen" or ":" in value:
                        yield f"{name_of(workload)}: {flag} {value} is not its port {port}"


def check_probes(objects: list[dict]) -> Iterator[str]:
    """What serves has probes, and they ask for what is answered."""
    for workload in workloads(objects):
        for container in workload["spec"]["template"]["spec"]["containers"]:
            names = {port["name"] for port in container["ports"]}
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                where = f"{name_of(workload)}: {probe}"
                asked = container.get(probe)
                if asked is None:
                    yield f"{where}: there is none"
                    continue
                get = asked.get("httpGet", {})
                port = get.get("port")
                if port not in names:
                    yield f"{where}: there is no port {port}"
                if get.get("path") not in PROBE_PATHS.get(port, ()):
                    yield f"{where}: {get.get('path')} is not answered at port {port}"
                has_tls = value_of(container, "--tls-cert") is not None
                if (get.get("scheme") == "HTTPS") != has_tls:
                    yield f"{where}: the port speaks {'HTTPS' if has_tls else 'HTTP'}"


def check_images(objects: list[dict]) -> Iterator[str]:
    for workload in workloads(objects):
        for container in containers(workload):
            tag = container["image"].rpartition("/")[2].partition(":")[2]
            if not tag or tag == "latest":
                yield f"{name_of(workload)}: image {container['image']} has no tag that stays"


def check_security(objects: list[dict]) -> Iterator[str]:
    """Nothing is allowed that is not needed; root is where it is named, and may change owners."""
    for found in objects:
        mounts = found.get("automountServiceAccountToken")
        if found["kind"] == "ServiceAccount" and mounts is not False:
            yield f"{name_of(found)}: its token is mounted"
    for workload in workloads(objects):
        where = name_of(workload)
        spec = workload["spec"]["template"]["spec"]
        accounts = [o["metadata"]["name"] for o in objects if o["kind"] == "ServiceAccount"]
        if spec["serviceAccountName"] not in accounts:
            yield f"{where}: there is no account {spec['serviceAccountName']}"
        if spec.get("automountServiceAccountToken") is not False:
            yield f"{where}: a token is mounted"
        pod = spec["securityContext"]
        if pod.get("runAsNonRoot") is not True or not pod.get("runAsUser"):
            yield f"{where}: it may run as root"
        if pod.get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{where}: it has no seccomp profile"
        for container in containers(workload):
            own, at = container["securityContext"], f"{where}: {container['name']}"
            if own.get("allowPrivilegeEscalation") is not False:
                yield f"{at}: it may get more rights"
            if own.get("readOnlyRootFilesystem") is not True:
                yield f"{at}: its files may be changed"
            added = own["capabilities"].get("add", [])
            is_root = container["name"] == "prepare-state"
            drops = own["capabilities"].get("drop") == ["ALL"]
            if not drops or added != (["CHOWN"] if is_root else []):
                yield f"{at}: its capabilities are {own['capabilities']}"
            if not is_root and {"runAsUser", "runAsNonRoot"} & set(own):
                yield f"{at}: it says itself whom it runs as"
            for kind in ("requests", "limits"):
                if "memory" not in container["resources"].get(kind, {}):
                    yield f"{at}: it has no {kind} of memory"


def check_volumes(objects: list[dict]) -> Iterator[str]:
    """What is mounted is there, what is there is mounted, and paths in flags are below a mount."""
    for workload in workloads(objects):
        spec = workload["spec"]["template"]["spec"]
        claims = workload["spec"].get("volumeClaimTemplates", [])
        there = {volume["name"] for volume in spec["volumes"]}
        there |= {claim["metadata"]["name"] for claim in claims}
        mounted = set()
        for container in containers(workload):
            mounts = container["volumeMounts"]
            mounted |= {mount["name"] for mount in mounts}
            for word in container.get("args", []):
                if re.fullmatch(r"/[a-z][^\s]*", word):
                    if not any(word.startswith(mount["mountPath"] + "/") for mount in mounts):
                        yield f"{name_of(workload)}: {word} is below no mount"
            for variable in container.get("env", []):
                if variable["name"] == "TESSERA_BEARER" and container["name"] == "node":
                    yield f"{name_of(workload)}: who runs models may change the cluster"
        for name in there ^ mounted:
            yield f"{name_of(workload)}: volume {name} is mounted or there, not both"


def check_secrets(objects: list[dict], others: set[str]) -> Iterator[str]:
    """Secrets that are named are those that come along, or those that the operator makes."""
    made = {o["metadata"]["name"]: o.get("data", {}) for o in objects if o["kind"] == "Secret"}
    for workload in workloads(objects):
        spec = workload["spec"]["template"]["spec"]
        asked = []
        for volume in spec["volumes"]:
            if "secret" in volume:
                keys = [item["key"] for item in volume["secret"].get("items", [])]
                asked.append((volume["secret"]["secretName"], keys))
        for container in containers(workload):
            for variable in container.get("env", []):
                reference = variable.get("valueFrom", {}).get("secretKeyRef")
                if reference:
                    asked.append((reference["name"], [reference["key"]]))
        for secret, keys in asked:
            if secret in others:
                continue
            for key in keys or [None]:
                if secret not in made or (key and key not in made[secret]):
                    yield f"{name_of(workload)}: there is no Secret {secret} with {key}"


def check_budgets(objects: list[dict]) -> Iterator[str]:
    """Kubernetes knows how many pods a DaemonSet should have only where a number must stay."""
    for found in objects:
        if found["kind"] != "PodDisruptionBudget":
            continue
        chosen = selected(objects, found, found["spec"]["selector"]["matchLabels"])
        is_daemon = any(workload["kind"] == "DaemonSet" for workload in chosen)
        if is_daemon and not isinstance(found["spec"].get("minAvailable"), int):
            yield f"{name_of(found)}: for a DaemonSet it needs minAvailable with a number"
        replicas = sum(workload["spec"].get("replicas", 0) for workload in chosen)
        if not is_daemon and found["spec"].get("minAvailable", 0) >= replicas:
            yield f"{name_of(found)}: no host could ever be drained"


def check_addresses(objects: list[dict]) -> Iterator[str]:
    """Nodes join every controller, under names that there are."""
    controllers = set()
    for workload in workloads(objects):
        if workload["kind"] == "StatefulSet":
            name, service = workload["metadata"]["name"], workload["spec"]["serviceName"]
            for number in range(workload["spec"]["replicas"]):
                controllers.add(f"{name}-{number}.{service}:8004")
            heads = [o for o in objects if o["kind"] == "Service"]
            heads = [o for o in heads if o["metadata"]["name"] == service]
            if [o["spec"].get("clusterIP") for o in heads] != ["None"]:
                yield f"{name_of(workload)}: there is no headless Service {service}"
            uses_etcd = value_of(containers(workload)[-1], "--etcd") is not None
            if workload["spec"]["replicas"] > 1 and not uses_etcd:
                yield f"{name_of(workload)}: several controllers without etcd"
    for workload in workloads(objects):
        for container in containers(workload):
            if role_of(container) == "node":
                joined = values_of(container, "--join")
                if set(joined) != controllers:
                    yield f"{name_of(workload)}: it joins {joined}, there is {sorted(controllers)}"
            for variable in container.get("env", []):
                url = variable.get("value", "")
                if variable["name"] == "TESSERA_CONTROLLER" and "localhost" not in url:
                    name = re.fullmatch(r"https://([a-z0-9-]+):8003", url)
                    services = [o["metadata"]["name"] for o in objects if o["kind"] == "Service"]
                    if not name or name[1] not in services:
                        yield f"{name_of(workload)}: there is no Service {url}"


def check_stopping(objects: list[dict]) -> Iterator[str]:
    """A pod has the time that its requests have, and some more."""
    for workload in workloads(objects):
        spec = workload["spec"]["template"]["spec"]
        for container in spec["containers"]:
            drain = int(value_of(container, "--drain") or 0) / 1000
            hook = container.get("lifecycle", {}).get("preStop", {}).get("exec", {})
            before = int(hook["command"][1]) if hook else 0
            needed = before + drain + CLOSING_SECONDS
            if spec["terminationGracePeriodSeconds"] < needed:
                yield f"{name_of(workload)}: it is killed before {needed} s have passed"


def command_lines(container: dict) -> list[list[str]]:
    """The calls of tessera in a container: words, where "$@" stands for its arguments."""
    command, arguments = container.get("command", []), container.get("args", [])
    if command[:1] == ["tessera"]:
        return [command + arguments]
    if command[:2] != ["sh", "-c"]:
        return []
    script, rest = (command[2], arguments) if len(command) > 2 else (arguments[0], [])
    lines = []
    for line in script.replace("\\\n", " ").splitlines():
        found = re.search(r"(?:^|exec |\()(tessera .*)", line.strip())
        if found:
            words = shlex.split(found[1].split(">")[0])
            place = words.index("$@") if "$@" in words else len(words)
            lines.append(words[:place] + rest + words[place + 1 :])
    return lines


def role_of(container: dict) -> str:
    """The command that a container runs: `controller`, `node`, `token`."""
    lines = command_lines(container)
    return lines[-1][1] if lines else ""


def values_of(container: dict, flag: str) -> list[str]:
    line = (command_lines(container) or [[]])[-1]
    return [line[place + 1] for place, word in enumerate(line[:-1]) if word == flag]


def value_of(container: dict, flag: str) -> str | None:
    return next(iter(values_of(container, flag)), None)


class BinaryFlags:
    """The flags of a tessera binary, from its helps."""

    def __init__(self, tessera: str):
        self.tessera = tessera
        self.known: dict[tuple[str, ...], dict[str, bool]] = {}

    def flags_of(self, command: tuple[str, ...]) -> dict[str, bool]:
        """The flags of a command, and whether they take a value."""
        if command not in self.known:
            helped = subprocess.run(
                [self.tessera, *command, "--help"], capture_output=True, text=True, timeout=20
            )
            if helped.returncode != 0:
                raise ValueError(f"`tessera {' '.join(command)} --help`: {helped.stderr.strip()}")
            found = re.findall(r"^\s+(?:-\w, )?(--[a-z0-9-]+)(?:[ =]+(<))?", helped.stdout, re.M)
            self.known[command] = {flag: bool(value) for flag, value in found}
        return self.known[command]


# Flags of a binary to come; where it has none of them they are left out, and that is said.
EXPECTED_FLAGS = {"--etcd", "--etcd-ca", "--etcd-cert", "--etcd-key"}


def check_flags(objects: list[dict], binary: BinaryFlags, missing: set[str]) -> Iterator[str]:
    """Every flag is one of the binary's, and has a value where it takes one."""
    for workload in workloads(objects):
        for container in containers(workload):
            lines = command_lines(container)
            if not lines and container["name"] != "prepare-state":
                yield f"{name_of(workload)}: {container['name']} runs no tessera"
            for line in lines:
                where = f"{name_of(workload)}: {' '.join(line[:2])}"
                first = next(i for i, word in enumerate(line) if word.startswith("--"))
                flags = binary.flags_of(tuple(line[1:first]))
                has_expected = bool(EXPECTED_FLAGS & set(flags))
                place = first
                while place < len(line):
                    flag = line[place]
                    if flag in EXPECTED_FLAGS and not has_expected:
                        missing.add(flag)
                        place += 2
                    elif not flag.startswith("--"):
                        yield f"{where}: {flag!r} belongs to no flag"
                        place += 1
                    elif flag not in flags:
                        yield f"{where}: the binary has no {flag}"
                        place += 1
                    elif flags[flag]:
                        if place + 1 >= len(line) or line[place + 1].startswith("--"):
                            yield f"{where}: {flag} has no value"
                        place += 2
                    else:
                        place += 1


# All that need nothing but objects that their schemas allow.
CHECKS = [
    check_names,
    check_selectors,
    check_ports,
    check_probes,
    check_images,
    check_security,
    check_volumes,
    check_budgets,
    check_addresses,
    check_stopping,
]
