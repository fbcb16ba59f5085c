"""A `tessera serve` to watch: a real process, on ports that are free."""

import json
import os
import pathlib
import select
import signal
import subprocess
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
READY_SECONDS = 60
STOP_SECONDS = 30


def environment() -> dict[str, str]:
    """This process's environment, with the ONNX Runtime of the project where none is set."""
    variables = dict(os.environ)
    libraries = sorted((ROOT / ".onnxruntime").glob("libonnxruntime.so.*"))
    if libraries:
        variables.setdefault("ORT_DYLIB_PATH", str(libraries[-1]))
    return variables


def run(binary: str, *words: str | pathlib.Path) -> str:
    """What a command of tessera prints."""
    command = [binary, *map(str, words)]
    ran = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
    if ran.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {ran.stderr}")
    return ran.stdout


def request(method: str, url: str, body: object = None) -> tuple[int, bytes]:
    """Asks over HTTP: the status and the answer, whichever they are."""
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


class Server:
    """A server that is being started; `wait_until_ready` comes before all else."""

    def __init__(self, binary: str, folder: pathlib.Path, files: list[pathlib.Path], *options: str):
        folder.mkdir()
        self.binary = binary
        self.log = folder / "log"
        command = [binary, "serve", *map(str, files), "--repo", str(folder / "repo"), "--json"]
        for port in ("http", "grpc", "metrics", "control"):
            command += [f"--{port}", "0"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, *options], stdout=subprocess.PIPE, stderr=log, env=environment()
            )

    def wait_until_ready(self) -> None:
        ready, _, _ = select.select([self.process.stdout], [], [], READY_SECONDS)
        line = self.process.stdout.readline() if ready else b""
        if not line:
            raise RuntimeError(f"the server did not start: {self.log.read_text()}")
        told = json.loads(line)
        self.http = f"http://{told['http']}"
        self.control = f"http://{told['control']}"
        self.metrics = told["metrics"]

    def change(self, method: str, path: str, body: object = "") -> dict:
        """Asks the control plane, which has to agree."""
        status, answer = request(method, self.control + path, body)
        if status != 200:
            raise RuntimeError(f"{method} {path}: {status}: {answer.decode()}")
        return json.loads(answer)

    def units(self) -> list[dict]:
        return self.change("GET", "/v1/units", None)["units"]

    def infer(self, task: str, body: dict) -> int:
        """The status of one request."""
        return request("POST", f"{self.http}/v2/models/{task}/infer", body)[0]

    def load(self, task: str, *options: str) -> subprocess.Popen:
        """`tessera load`, which goes on meanwhile."""
        command = [self.binary, "load", task, "--url", self.http, "--warm-up", "0", "--json"]
        return subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
        )

    def page(self) -> str:
        """The page of metrics."""
        return request("GET", f"http://{self.metrics}/metrics")[1].decode()

    def stop(self) -> None:
        """Stops it as an operator does."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
