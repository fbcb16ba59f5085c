"""A `tessera serve` of one model, and requests to it with the protocol's binary tensors."""

import http.client
import json
import os
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import numpy

import files

READY_SECONDS = 300
REQUEST_SECONDS = 120
STOP_SECONDS = 60
HEADER_LENGTH = "Inference-Header-Content-Length"
# Names of the protocol for dtypes of numpy; strings are BYTES.
INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
DATATYPES = {name: name.upper() for name in ("bool", *INTEGERS)}
DATATYPES |= {"float16": "FP16", "float32": "FP32", "float64": "FP64"}
NUMPY_TYPES = {datatype: numpy.dtype(name) for name, datatype in DATATYPES.items()}


def environment() -> dict[str, str]:
    """This process's environment, with the ONNX Runtime of the project where none is set."""
    variables = dict(os.environ)
    libraries = sorted((files.ROOT / ".onnxruntime").glob("libonnxruntime.so.*"))
    if libraries:
        variables.setdefault("ORT_DYLIB_PATH", str(libraries[-1]))
    return variables


class Server:
    """A running `tessera serve …`, on ports that are free, with a repository of its own."""

    def __init__(self, command: list):
        self.folder = Path(tempfile.mkdtemp(prefix="tessera-real-models-"))
        self.command = command
        self.process = None
        try:
            self.told = self._start()
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> dict:
        """Starts it, and reads the line that says where it listens and what it serves."""
        command = [*self.command, "--repo", self.folder / "repository", "--json"]
        command += ["--deadline", str(REQUEST_SECONDS * 1000)]
        for port in ("http", "grpc", "metrics", "control"):
            command += [f"--{port}", "0"]
        with self._log().open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, env=environment()
            )
        readable, _, _ = select.select([self.process.stdout], [], [], READY_SECONDS)
        line = self.process.stdout.readline() if readable else b""
        if not line:
            raise RuntimeError(f"the server did not start: {self._state()}")
        return json.loads(line)

    def _wait_until_ready(self):
        late = time.monotonic() + READY_SECONDS
        while time.monotonic() < late:
            try:
                with self._open("v2/health/ready"):
                    return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError(f"the server is not ready: {self._state()}")

    def _log(self) -> Path:
        return self.folder / "log"

    def _state(self) -> str:
        """What it said last on standard error, and whether it has ended."""
        try:
            ended = self.process.wait(1)
            state = signal.Signals(-ended).name if ended < 0 else f"code {ended}"
            state = f"it ended with {state}"
        except subprocess.TimeoutExpired:
            state = "it runs"
        said = self._log().read_text(errors="replace").strip().splitlines()
        return f"{said[-1]} ({state})" if said else state

    def _open(self, path: str, body: bytes | None = None, headers: dict | None = None):
        address = f"http://{self.told['http']}/{path}"
        request = urllib.request.Request(address, body, headers or {})
        return urllib.request.urlopen(request, timeout=REQUEST_SECONDS)

    def infer(self, task: str, inputs: dict[str, numpy.ndarray]) -> dict[str, numpy.ndarray]:
        """What the task answers."""
        header, tensors = encoded(inputs)
        path = f"v2/models/{urllib.parse.quote(task, safe='')}/infer"
        length = {HEADER_LENGTH: str(len(header)), "Content-Type": "application/octet-stream"}
        try:
            with self._open(path, header + tensors, length) as answer:
                body = answer.read()
                return decoded(body, int(answer.headers.get(HEADER_LENGTH, len(body))))
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace").strip()
            raise RuntimeError(f"the server answered {error.code}: {text}") from None
        except (OSError, http.client.HTTPException) as error:
            raise RuntimeError(f"no answer, {error!r}: {self._state()}") from None

    def stop(self):
        """Stops it as an operator does, and removes its repository."""
        try:
            if self.process is not None:
                self._end()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self):
        running = self.process.poll() is None
        if running:
            self.process.send_signal(signal.SIGTERM)
        try:
            ended = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            ended = self.process.wait()
        self.process.stdout.close()
        if running and ended != 0:
            raise RuntimeError(f"the server did not stop well: {self._state()}")


def encoded(inputs: dict[str, numpy.ndarray]) -> tuple[bytes, bytes]:
    """The header and the tensors of a request whose answer is to be binary too."""
    tensors, described = [], []
    for name, value in inputs.items():
        data = to_bytes(value)
        tensors.append(data)
        described.append(
            {
                "name": name,
                "shape": list(value.shape),
                "datatype": DATATYPES.get(value.dtype.name, "BYTES"),
                "parameters": {"binary_data_size": len(data)},
            }
        )
    header = {"inputs": described, "parameters": {"binary_data_output": True}}
    return json.dumps(header).encode(), b"".join(tensors)


def to_bytes(value: numpy.ndarray) -> bytes:
    if value.dtype.name in DATATYPES:
        return value.tobytes()
    texts = [str(text).encode() for text in value.ravel()]
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def decoded(body: bytes, header_length: int) -> dict[str, numpy.ndarray]:
    """The tensors of an answer."""
    header = json.loads(body[:header_length])
    start, outputs = header_length, {}
    for output in header["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        if size is None:
            flat = from_json(output)
        else:
            flat = from_bytes(output["datatype"], body[start : start + size])
            start += size
        outputs[output["name"]] = flat.reshape(output["shape"])
    return outputs


def from_json(output: dict) -> numpy.ndarray:
    return numpy.array(output["data"], dtype=NUMPY_TYPES.get(output["datatype"], object))


def from_bytes(datatype: str, data: bytes) -> numpy.ndarray:
    if datatype != "BYTES":
        return numpy.frombuffer(data, NUMPY_TYPES[datatype])
    texts, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at)
        texts.append(data[at + 4 : at + 4 + length].decode())
        at += 4 + length
    return numpy.array(texts, dtype=object)
