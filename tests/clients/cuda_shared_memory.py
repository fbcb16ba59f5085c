#!/usr/bin/env python3
"""Tensors that stay in the memory of a GPU: run by hand where there is one, against a server that runs.

    tessera serve resnet50.onnx --device cuda:0
    tests/clients/cuda_shared_memory.py --model resnet50

Asks a model with one FP32 input once with the tensor in the request and once through CUDA shared memory,
compares the outputs bit for bit, tries what must be refused, and times both ways. Each check prints a line;
a failure makes it end with 1. It needs nothing but Python and the driver (libcuda).
"""

import argparse
import array
import base64
import ctypes
import http.client
import json
import os
import random
import statistics
import sys
import time
import urllib.parse

HANDLE = 64
ALIGNMENT = 256


# --- the GPU


class Handle(ctypes.Structure):
    """What opens memory in another process: a cudaIpcMemHandle_t."""

    _fields_ = [("reserved", ctypes.c_ubyte * HANDLE)]


class Gpu:
    """A GPU, through the driver."""

    def __init__(self, number: int):
        try:
            self.cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise SystemExit(f"no GPU here: {error}") from None
        self.number = number
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), number)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments):
        status = getattr(self.cuda, name)(*arguments)
        if status != 0:
            text = ctypes.c_char_p()
            self.cuda.cuGetErrorString(status, ctypes.byref(text))
            raise SystemExit(f"{name}: {(text.value or b'unknown').decode()} ({status})")


class Memory:
    """Memory of a GPU that others can open."""

    def __init__(self, gpu: Gpu, size: int):
        self.gpu, self.size = gpu, size
        self.address = ctypes.c_uint64()
        gpu.call("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(size))

    def handle(self) -> bytes:
        made = Handle()
        self.gpu.call("cuIpcGetMemHandle", ctypes.byref(made), self.address)
        return bytes(made.reserved)

    def write(self, data: bytes, offset: int = 0):
        target = ctypes.c_uint64(self.address.value + offset)
        self.gpu.call("cuMemcpyHtoD_v2", target, data, ctypes.c_size_t(len(data)))
        # The copy may still be under way when the call returns, and the server reads in another process.
        self.gpu.call("cuCtxSynchronize")

    def read(self, size: int, offset: int = 0) -> bytes:
        data = ctypes.create_string_buffer(size)
        source = ctypes.c_uint64(self.address.value + offset)
        self.gpu.call("cuMemcpyDtoH_v2", data, source, ctypes.c_size_t(size))
        return data.raw

    def free(self):
        self.gpu.call("cuMemFree_v2", self.address)


# --- the server


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, message: str):
        super().__init__(f"{status} {message}")
        self.status, self.message = status, message


class Server:
    """A server of the protocol, over one connection."""

    def __init__(self, url: str):
        place = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
        self.connection = http.client.HTTPConnection(place.hostname, place.port or 80, timeout=60)

    def call(self, method: str, path: str, body: bytes = b"", headers=None):
        """The JSON of an answer, and the bytes after it."""
        self.connection.request(method, path, body, headers or {})
        response = self.connection.getresponse()
        data = response.read()
        if response.status != 200:
            try:
                message = json.loads(data)["error"]
            except (ValueError, KeyError):
                message = data.decode(errors="replace")
            raise Refused(response.status, message)
        split = int(response.headers.get("Inference-Header-Content-Length", len(data)))
        return (json.loads(data[:split]) if data[:split].strip() else None), data[split:]

    def post(self, path: str, body=None):
        return self.call("POST", path, b"" if body is None else json.dumps(body).encode())

    def register(self, name: str, handle, byte_size: int, device: int = 0):
        """Registers memory; a handle that is no bytes goes as it is."""
        text = base64.b64encode(handle).decode() if isinstance(handle, bytes) else handle
        body = {"raw_handle": {"b64": text}, "device_id": device, "byte_size": byte_size}
        self.post(f"/v2/cudasharedmemory/region/{name}/register", body)

    def status(self) -> list:
        return self.call("GET", "/v2/cudasharedmemory/status")[0]

    def unregister(self, name: str = ""):
        region = f"/region/{name}" if name else ""
        self.post(f"/v2/cudasharedmemory{region}/unregister")


def place(region: str, byte_size: int, offset: int = 0) -> dict:
    return {
        "shared_memory_region": region,
        "shared_memory_byte_size": byte_size,
        "shared_memory_offset": offset,
    }


class Model:
    """A model with one input of FP32."""

    def __init__(self, server: Server, name: str, input_name: str | None, rows: int, shape):
        self.server, self.path = server, f"/v2/models/{urllib.parse.quote(name, safe='')}"
        told, _ = server.call("GET", self.path)
        inputs = [one for one in told["inputs"] if input_name in (None, one["name"])]
        if len(told["inputs"]) != 1 or not inputs or inputs[0]["datatype"] != "FP32":
            raise SystemExit(f"expected a model with one input of FP32, it has {told['inputs']}")
        self.input = inputs[0]["name"]
        sizes = inputs[0]["shape"]
        open_sizes = [rows if index == 0 else 1 for index in range(len(sizes))]
        known = [size if size >= 0 else other for size, other in zip(sizes, open_sizes)]
        self.shape = shape or known
        self.count = 1
        for size in self.shape:
            self.count *= size
        self.bytes = 4 * self.count

    def ask(self, data=None, source=None, targets=None):
        """The outputs as bytes by name; those that go to shared memory are empty.

        The input is `data` in the request, or at `source`; `targets` has places by output.
        """
        parameters = source or {"binary_data_size": len(data)}
        tensor = {"name": self.input, "datatype": "FP32", "shape": self.shape, "parameters": parameters}
        body = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
        if targets:
            body["outputs"] = [{"name": name, "parameters": at} for name, at in targets.items()]
        header = json.dumps(body).encode()
        headers = {"Inference-Header-Content-Length": str(len(header))}
        answer, rest = self.server.call(
            "POST", f"{self.path}/infer", header + (b"" if source else data), headers
        )
        outputs, at = {}, 0
        for output in answer["outputs"]:
            size = output.get("parameters", {}).get("binary_data_size", 0)
            outputs[output["name"]] = rest[at : at + size]
            at += size
        return outputs


# --- the checks


class Checks:
    """Prints a line per check, and counts those that failed."""

    def __init__(self):
        self.failed = 0

    def check(self, what: str, is_right: bool, more: str = ""):
        print(f"{'ok    ' if is_right else 'FAILED'} {what}{': ' + more if more else ''}", flush=True)
        self.failed += not is_right

    def refused(self, what: str, statuses: tuple, parts: tuple, call):
        try:
            call()
        except Refused as refused:
            is_right = refused.status in statuses and all(part in refused.message for part in parts)
            self.check(f"refused: {what}", is_right, str(refused))
        else:
            self.check(f"refused: {what}", False, "it was answered")


def numbers(count: int, seed: int) -> bytes:
    source = random.Random(seed)
    return array.array("f", (source.gauss(0.0, 1.0) for _ in range(count))).tobytes()


def layout(outputs: dict) -> tuple:
    """Where each output goes in one region, and how long that must be."""
    targets, end = {}, 0
    for name, data in outputs.items():
        targets[name] = place("cuda_out", len(data), end)
        end += -(-len(data) // ALIGNMENT) * ALIGNMENT
    return targets, max(end, 1)


def fetch(memory: Memory, targets: dict) -> dict:
    return {
        name: memory.read(at["shared_memory_byte_size"], at["shared_memory_offset"])
        for name, at in targets.items()
    }


def answers(checks: Checks, gpu: Gpu, server: Server, model: Model):
    """Asks both ways; returns what the times are taken with."""
    data, other = numbers(model.count, 1), numbers(model.count, 2)
    expected, expected_other = model.ask(data), model.ask(other)
    targets, size = layout(expected)
    # Room for the input at an odd place too.
    source, target = Memory(gpu, model.bytes + ALIGNMENT), Memory(gpu, size)
    source.write(data)
    target.write(b"\xff" * size)
    server.register("cuda_in", source.handle(), source.size, gpu.number)
    server.register("cuda_out", target.handle(), target.size, gpu.number)
    told = {region["name"]: (region["device_id"], region["byte_size"]) for region in server.status()}
    registered = {"cuda_in": (gpu.number, source.size), "cuda_out": (gpu.number, size)}
    checks.check("both regions are listed", told == registered, str(told))

    at = place("cuda_in", model.bytes)
    sent = model.ask(source=at, targets=targets)
    checks.check("nothing is sent back", all(not data for data in sent.values()))
    checks.check("input and output in CUDA memory: equal to the bit", fetch(target, targets) == expected)
    checks.check("input alone in CUDA memory", model.ask(source=at) == expected)
    target.write(b"\xff" * size)
    model.ask(data, targets=targets)
    checks.check("output alone in CUDA memory", fetch(target, targets) == expected)
    source.write(other)
    model.ask(source=at, targets=targets)
    checks.check("another input in the same place", fetch(target, targets) == expected_other)
    source.write(data, 4)
    moved = place("cuda_in", model.bytes, 4)
    checks.check("an input that starts 4 bytes into the region", model.ask(source=moved) == expected)
    source.write(data)
    return data, source, target, targets


def refusals(checks: Checks, server: Server, model: Model, data: bytes, source: Memory, targets: dict):
    """What must be refused, and why."""
    gpu, handle, size = source.gpu, source.handle(), source.size
    refused, register, ask = checks.refused, server.register, model.ask
    refused("a name that is taken", (400,), ("cuda_in", "already"),
            lambda: register("cuda_in", handle, size, gpu.number))
    refused("more bytes than the memory has", (400,), ("byte_size", "the memory has"),
            lambda: register("large", handle, 1 << 50, gpu.number))
    refused("no bytes", (400,), ("byte_size is 0",), lambda: register("none", handle, 0, gpu.number))
    refused("a handle of nothing", (400,), ("shared memory region 'bad'",),
            lambda: register("bad", bytes(HANDLE), size, gpu.number))
    refused("a handle that is too short", (400,), ("63", "64"),
            lambda: register("bad", handle[:63], size, gpu.number))
    refused("a handle that is no base64", (400,), ("base64",),
            lambda: register("bad", "*" * 88, size, gpu.number))
    refused("a GPU that is not there", (400,), ("cuda:1000",),
            lambda: register("bad", handle, size, 1000))
    refused("a name that nobody registered", (404,), ("unknown",),
            lambda: ask(source=place("unknown", model.bytes)))
    refused("an input past the end", (400,), ("asked for",),
            lambda: ask(source=place("cuda_in", model.bytes, size)))
    refused("an input of the wrong size", (400,), ("needs",),
            lambda: ask(source=place("cuda_in", model.bytes - 4)))
    refused("an input between elements", (400,), ("multiple of 4",),
            lambda: ask(source=place("cuda_in", model.bytes, 2)))
    name, at = next(iter(targets.items()))
    small = {name: {**at, "shared_memory_byte_size": 1}}
    refused("an output without room", (400,), (name, "set aside"), lambda: ask(data, targets=small))
    refused("an output past the end", (400,), (name, "asked for"),
            lambda: ask(data, targets={name: {**at, "shared_memory_offset": 1 << 40}}))
    key = f"/tessera-cuda-check-{os.getpid()}"
    with open(f"/dev/shm{key}", "wb") as file:
        file.write(bytes(64))
    try:
        system = "/v2/systemsharedmemory/region/cuda_in/register"
        refused("the same name in system shared memory", (400,), ("already",),
                lambda: server.post(system, {"key": key, "byte_size": 64}))
    finally:
        os.remove(f"/dev/shm{key}")
    checks.check("the regions are as they were", len(server.status()) == 2)


def median_ms(count: int, ask) -> float:
    for _ in range(min(count, 20)):
        ask()
    times = []
    for _ in range(count):
        start = time.perf_counter()
        ask()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the server")
    parser.add_argument("--model", required=True, help="a model with one input of FP32")
    parser.add_argument("--input-name", help="its input; that of the metadata where this is missing")
    parser.add_argument("--shape", help="the input's shape, as 1,3,224,224, where dimensions are open")
    parser.add_argument("--rows", type=int, default=1, help="rows where the first dimension is open")
    parser.add_argument("--device", type=int, default=0, help="number of the GPU")
    parser.add_argument("--requests", type=int, default=200, help="requests to time, each way")
    options = parser.parse_args()
    shape = [int(size) for size in options.shape.split(",")] if options.shape else None

    gpu, server, checks = Gpu(options.device), Server(options.url), Checks()
    model = Model(server, options.model, options.input_name, options.rows, shape)
    print(f"{options.model}: {model.input} {model.shape}, {model.bytes} bytes")
    extensions = server.call("GET", "/v2")[0]["extensions"]
    checks.check("the server tells the extension", "cuda_shared_memory" in extensions)
    server.unregister()
    data, source, target, targets = answers(checks, gpu, server, model)
    refusals(checks, server, model, data, source, targets)

    at = place("cuda_in", model.bytes)
    plain = median_ms(options.requests, lambda: model.ask(data))
    shared = median_ms(options.requests, lambda: model.ask(source=at, targets=targets))
    print(f"time   in the request: {plain:.3f} ms, in CUDA memory: {shared:.3f} ms "
          f"(median of {options.requests})")

    server.unregister("cuda_in")
    checks.check("one region is left", [one["name"] for one in server.status()] == ["cuda_out"])
    checks.refused("what was forgotten", (404,), ("cuda_in",), lambda: model.ask(source=at))
    server.unregister()
    checks.check("no region is left", server.status() == [])
    source.free()
    target.free()
    print(f"{checks.failed} checks failed" if checks.failed else "all checks passed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
