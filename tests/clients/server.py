"""A `tessera serve` to test against: a real process, on ports that are free."""

import atexit
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import models

ROOT = Path(__file__).resolve().parents[2]
READY_SECONDS = 60
STOP_SECONDS = 40


def binary() -> Path:
    """The binary to test: $TESSERA, or the newest that was built here."""
    if "TESSERA" in os.environ:
        return Path(os.environ["TESSERA"]).resolve()
    built = [ROOT / "target" / profile / "tessera" for profile in ("release", "debug")]
    built = [path for path in built if path.exists()]
    if not built:
        raise SystemExit("no tessera binary: build it, or set TESSERA to one")
    return max(built, key=lambda path: path.stat().st_mtime)


def environment() -> dict[str, str]:
    """This process's environment, with the ONNX Runtime of the project where none is set."""
    variables = dict(os.environ)
    libraries = sorted((ROOT / ".onnxruntime").glob("libonnxruntime.so.*"))
    if libraries:
        variables.setdefault("ORT_DYLIB_PATH", str(libraries[-1]))
    return variables


def zoo(folder: Path, name: str, *options: str, output: str) -> Path:
    """A model of the zoo."""
    path = folder / f"{output}.onnx"
    command = [binary(), "zoo", name, "--output", path, *options]
    subprocess.run(command, check=True, env=environment(), stdout=subprocess.DEVNULL)
    return path


class Addresses:
    """Where a server is: HOST:PORT of each of its listeners."""

    def __init__(self, told: dict):
        self.told = told
        self.http = told["http"]
        self.grpc = told["grpc"]
        self.metrics = told["metrics"]
        self.control = told["control"]


class Server(Addresses):
    """A running server. What it says on standard error is in `log`."""

    def __init__(self, folder: Path, files: list[Path], *options: str):
        self.log = folder / "log"
        command = [binary(), "serve", *files, "--repo", folder / "repository", "--json"]
        for port in ("http", "grpc", "metrics", "control"):
            command += [f"--{port}", "0"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, *options], stdout=subprocess.PIPE, stderr=log, env=environment()
            )
        ready, _, _ = select.select([self.process.stdout], [], [], READY_SECONDS)
        line = self.process.stdout.readline() if ready else b""
        if not line:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the server did not start: {self.log.read_text()}")
        super().__init__(json.loads(line))

    def stop(self):
        """Stops it as an operator does."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            ended = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the server did not stop: {self.log.read_text()}") from None
        finally:
            self.process.stdout.close()
        if ended != 0:
            raise AssertionError(f"the server ended with {ended}: {self.log.read_text()}")


class Shared:
    """The server that most tests share, and the files of its models."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="tessera-clients-"))
        try:
            self.files = models.write_all(self.folder)
            self.files["resnet"] = zoo(
                self.folder, "resnet18", "--batch", "dynamic", output="resnet"
            )
            self.files["exits"] = zoo(self.folder, "resnet18", "--exits", output="exits")
            self.server = Server(self.folder, list(self.files.values()))
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def told(self) -> dict:
        """What a process needs to attach to it."""
        files = {name: str(path) for name, path in self.files.items()}
        return {"server": self.server.told, "files": files}

    def stop(self):
        try:
            self.server.stop()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


class Attached:
    """The shared server of another process, which stops it."""

    def __init__(self, told: dict):
        self.server = Addresses(told["server"])
        self.files = {name: Path(path) for name, path in told["files"].items()}

    def stop(self):
        pass


# The variable with what `Shared.told` says, for processes that attach.
ATTACH = "TESSERA_CLIENTS_SERVER"
_shared: Shared | Attached | None = None


def shared() -> Shared | Attached:
    """The shared server, started for the first test that needs it."""
    global _shared
    if _shared is None:
        _shared = Attached(json.loads(os.environ[ATTACH])) if ATTACH in os.environ else Shared()
    return _shared


@atexit.register
def stop_shared():
    """Stops the shared server; the next test that needs it starts it again."""
    global _shared
    if _shared is not None:
        stopping, _shared = _shared, None
        stopping.stop()
