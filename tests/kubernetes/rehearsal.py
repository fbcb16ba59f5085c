"""Runs the containers' own commands on this machine: a controller and a node, as objects have them.

There is no Kubernetes in it: paths, ports and names of Services are put in the place of what the
kubelet would make of them, and nothing else is changed."""

import base64
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import ssl
import subprocess
import tempfile
import time

from checks import containers, port_names, workloads

# A name of Kubernetes' that is none for a node of Tessera's.
HOST = "Ip-10-0-0-1.eu_1.compute.internal"
NODE = "ip-10-0-0-1-eu-1-compute-internal"
START_SECONDS = 30
# How long certificates of nodes are good here; long enough for a node to be stopped and started.
CERTIFICATE_SECONDS = "25"


class RehearsalError(Exception):
    """Something did not go as it should."""


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise RehearsalError(what)


class Rehearsal:
    """One controller and one node of a set of objects, in a folder of its own."""

    def __init__(self, objects: list[dict], tessera: str, folder: pathlib.Path):
        self.objects = objects
        self.folder = folder
        self.controller = next(w for w in workloads(objects) if w["kind"] == "StatefulSet")
        self.node = next(w for w in workloads(objects) if w["kind"] == "DaemonSet")
        self.namespace = self.node["metadata"]["namespace"]
        ports = {**port_names(self.controller), **port_names(self.node)}
        self.ports = {str(port): str(free_port()) for port in ports.values()}
        self.running: list[subprocess.Popen] = []
        (folder / "bin").mkdir()
        (folder / "bin" / "tessera").symlink_to(tessera)
        for workload in (self.controller, self.node):
            self.write_mounts(workload)

    def root(self, workload: dict) -> pathlib.Path:
        """Where the files of a workload's pod are."""
        return self.folder / workload["kind"]

    def write_mounts(self, workload: dict) -> None:
        """Makes the folders that containers mount, with what is in Secrets."""
        secrets = {o["metadata"]["name"]: o["data"] for o in self.objects if o["kind"] == "Secret"}
        spec = workload["spec"]["template"]["spec"]
        sources = {volume["name"]: volume.get("secret") for volume in spec["volumes"]}
        for container in containers(workload):
            for mount in container["volumeMounts"]:
                place = self.root(workload) / mount["mountPath"].lstrip("/")
                place.mkdir(parents=True, exist_ok=True)
                source = sources.get(mount["name"])
                if source is None:
                    continue
                data = secrets[source["secretName"]]
                for key in [item["key"] for item in source.get("items", [])] or data:
                    (place / key).write_bytes(base64.b64decode(data[key]))
                    (place / key).chmod(0o400)

    def translate(self, text: str, workload: dict) -> str:
        """A word or a script, with what stands here for the pod's folders, ports and names."""
        root = self.root(workload)
        text = re.sub(r"(?<![\w/])/(var/lib|etc|run)/tessera\b", rf"{root}/\1/tessera", text)
        text = re.sub(r"\b800[0-4]\b", lambda found: self.ports.get(found[0], found[0]), text)
        name = self.controller["metadata"]["name"]
        return re.sub(rf"\b{name}(-\d+\.[a-z-]+)?:(?=\d)", "localhost:", text)

    def environment(self, container: dict, workload: dict) -> dict[str, str]:
        """The variables of a container."""
        fields = {
            "metadata.name": f"{workload['metadata']['name']}-0",
            "metadata.namespace": self.namespace,
            "spec.nodeName": HOST,
            "status.podIP": "127.0.0.1",
        }
        secrets = {o["metadata"]["name"]: o["data"] for o in self.objects if o["kind"] == "Secret"}
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        variables = {"PATH": path, "TMPDIR": str(self.root(workload) / "tmp")}
        if "ORT_DYLIB_PATH" in os.environ:
            variables["ORT_DYLIB_PATH"] = os.environ["ORT_DYLIB_PATH"]
        for variable in container.get("env", []):
            match variable:
                case {"value": value}:
                    value = self.translate(value, workload)
                case {"valueFrom": {"fieldRef": {"fieldPath": field}}}:
                    value = fields[field]
                case {"valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}:
                    value = base64.b64decode(secrets[secret][key]).decode()
            variables[variable["name"]] = value
        return variables

    def start(self, container: dict, workload: dict) -> subprocess.Popen:
        """Starts a container's command, with variables in it expanded as Kubernetes does."""
        variables = self.environment(container, workload)
        words = container["command"] + container.get("args", [])
        words = [self.translate(word, workload) for word in words]
        expand = lambda found: variables.get(found[1], found[0])
        words = [re.sub(r"\$\(([A-Za-z_]\w*)\)", expand, word) for word in words]
        log = open(self.root(workload) / f"{container['name']}.log", "ab")
        started = subprocess.Popen(
            words, env=variables, cwd=self.root(workload), stdout=log, stderr=log
        )
        self.running.append(started)
        return started

    def log_of(self, name: str, workload: dict) -> str:
        return (self.root(workload) / f"{name}.log").read_text()[-1500:]

    def run_init(self) -> None:
        """Runs the init container that gets a token."""
        init = next(c for c in containers(self.node) if c["name"] == "join-token")
        ended = self.start(init, self.node).wait(timeout=START_SECONDS)
        expect(ended == 0, f"join-token ended with {ended}: {self.log_of('join-token', self.node)}")

    def start_node(self) -> subprocess.Popen:
        """Starts the node, and waits until its probes would be content."""
        container = containers(self.node)[-1]
        started = self.start(container, self.node)
        self.wait_for_probes(container, self.node, started)
        return started

    def wait_for_probes(self, container: dict, workload: dict, started: subprocess.Popen) -> None:
        until = time.monotonic() + START_SECONDS
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            while not self.passes(container[probe], workload):
                log = f"{container['name']}: {self.log_of(container['name'], workload)}"
                expect(started.poll() is None, f"it ended: {log}")
                expect(time.monotonic() < until, f"{probe} fails: {log}")
                time.sleep(0.1)

    def passes(self, probe: dict, workload: dict) -> bool:
        """Whether a probe is answered as the kubelet wants it."""
        try:
            get = probe["httpGet"]
            status, _ = self.ask("GET", self.port_of(get["port"], workload), get["path"])
            return 200 <= status < 400
        except OSError:
            return False

    def port_of(self, name: str, workload: dict) -> int:
        return int(self.ports[str(port_names(workload)[name])])

    def ask(
        self, method: str, port: int, path: str, body=None, authority=None, **headers: str
    ) -> tuple[int, bytes]:
        """Asks over TLS; with `authority`, a server whose certificate is for localhost."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if authority is None:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        else:
            context.load_verify_locations(authority)
        connection = http.client.HTTPSConnection("localhost", port, timeout=20, context=context)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def administer(self, *words: str) -> str:
        """Runs tessera as `kubectl exec` does in the controller's container."""
        container = containers(self.controller)[-1]
        ended = subprocess.run(
            ["tessera", *(self.translate(word, self.controller) for word in words)],
            env=self.environment(container, self.controller),
            executable=self.folder / "bin" / "tessera",
            cwd=self.root(self.controller),
            capture_output=True,
            text=True,
            timeout=60,
        )
        expect(ended.returncode == 0, f"tessera {' '.join(words)}: {ended.stderr}")
        return ended.stdout

    def tokens(self, secret_end: str) -> dict[str, str]:
        """The tokens of a file, by the name of their holder."""
        found = next(o for o in self.objects if o["metadata"]["name"].endswith(secret_end))
        lines = base64.b64decode(found["data"]["tokens"]).decode().splitlines()
        return {line.split()[0]: line.split()[2] for line in lines}

    def stop(self, process: subprocess.Popen, what: str) -> None:
        process.send_signal(signal.SIGTERM)
        expect(process.wait(timeout=40) == 0, f"{what} ended with {process.returncode}")

    def close(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.kill()
                process.wait()

    def play(self) -> None:
        """From nothing to an answer, and through what happens to pods."""
        authority = self.root(self.controller) / "etc/tessera/tls/ca.crt"
        controller = dict(containers(self.controller)[-1])
        # A day is too long to wait for.
        controller["args"] = with_flag(controller["args"], "--certificate-life", CERTIFICATE_SECONDS)
        started = self.start(controller, self.controller)
        self.wait_for_probes(controller, self.controller, started)

        # A node that has nothing gets a token, joins, and is called after its host.
        token = self.root(self.node) / "run/tessera/join-token"
        self.run_init()
        expect(token.stat().st_mode & 0o077 == 0, "others may read the token")
        node = self.start_node()
        names = [found["name"] for found in self.nodes()]
        expect(names == [NODE], f"the nodes are {names}, expected {NODE}")

        # A model becomes a task, as docs/kubernetes.md says; a client gets an answer.
        self.serve_model(authority)

        # Those who have no token, or ask for a host of somebody else, get nothing.
        http_port, metrics = (self.port_of(name, self.node) for name in ("http", "metrics"))
        gateway = next(o for o in self.objects if o["metadata"]["name"].endswith("-gateway"))
        own = f"{gateway['metadata']['name']}.{self.namespace}:8000"
        for host, expected in ((own, 200), ("tessera.example", 403)):
            status, _ = self.ask("GET", http_port, "/v2/health/live", Host=host)
            expect(status == expected, f"host {host} gets {status}, expected {expected}")
        observer = f"Bearer {self.tokens('-gateway-tokens')['prometheus']}"
        for headers, expected in (({}, 401), ({"Authorization": observer}, 200)):
            status, _ = self.ask("GET", metrics, "/metrics", **headers)
            expect(status == expected, f"metrics give {status}, expected {expected}")

        # A pod that is made again needs no token.
        self.stop(node, "the node")
        token.unlink()
        self.run_init()
        expect(not token.exists(), "a node with a good certificate got a token")
        node = self.start_node()

        # One whose certificate has expired gets a token, and joins again under its name.
        self.stop(node, "the node")
        self.wait_for_expiry()
        self.run_init()
        expect(token.exists(), "a node whose certificate has expired got no token")
        node = self.start_node()
        expect([found["name"] for found in self.nodes()] == [NODE], "it is no node any more")

        # What is taken away by those who run a cluster.
        self.change_task("DELETE", None, authority)

        # Nodes go on without a controller; a controller takes up what there was.
        self.stop(started, "the controller")
        self.wait_for_probes(containers(self.node)[-1], self.node, node)
        started = self.start(controller, self.controller)
        self.wait_for_probes(controller, self.controller, started)
        self.stop(node, "the node")
        self.stop(started, "the controller")

    def nodes(self) -> list[dict]:
        return json.loads(self.administer("nodes", "--json"))["nodes"]

    def serve_model(self, authority: pathlib.Path) -> None:
        model = "/var/lib/tessera/small.onnx"
        self.administer("zoo", "mobilenet-v2", "--output", model)
        self.administer("split", model)
        self.change_task("PUT", json.dumps({"model": "small", "batching": "off"}), authority)
        port, path = self.port_of("http", self.node), "/v2/models/small/infer"
        client = f"Bearer {self.tokens('-gateway-tokens')['client']}"
        headers = {"Inference-Header-Content-Length": "0", "Authorization": client}
        refused, _ = self.ask("GET", port, "/v2/models/small")
        expect(refused == 401, f"somebody without a token gets {refused}")
        until = time.monotonic() + START_SECONDS
        while True:
            image = bytes(4 * 3 * 224 * 224)
            status, answer = self.ask("POST", port, path, image, **headers)
            if status == 200:
                return
            expect(time.monotonic() < until, f"no answer: {status} {answer[:300]}")
            time.sleep(0.2)

    def change_task(self, method: str, body: str | None, authority: pathlib.Path) -> None:
        """Asks the control plane, as somebody with its certificate's authority and a token."""
        port = self.port_of("control", self.controller)
        admin = f"Bearer {self.tokens('-controller-tokens')['admin']}"
        headers = {"Authorization": admin, "Content-Type": "application/json"}
        status, answer = self.ask(method, port, "/v1/tasks/small", body, authority, **headers)
        expect(status < 300, f"{method} of a task: {status} {answer[:300]}")

    def wait_for_expiry(self) -> None:
        """Waits until the node's certificate is one of a time gone by, for the controller, too."""
        file = self.root(self.node) / "var/lib/tessera/node/serve/identity.json"
        expires = json.loads(file.read_text())["expires"]["secs_since_epoch"]
        time.sleep(max(0, expires + 2 - time.time()))


def with_flag(args: list[str], flag: str, value: str) -> list[str]:
    """The arguments with this value of a flag, in place of any other."""
    kept = [at for at in range(len(args)) if flag not in args[max(0, at - 1) : at + 1]]
    return [args[at] for at in kept] + [flag, value]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def rehearse(objects: list[dict], tessera: str) -> None:
    """Plays all of it; an error says what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        rehearsal = Rehearsal(objects, tessera, pathlib.Path(folder))
        try:
            rehearsal.play()
        finally:
            rehearsal.close()
