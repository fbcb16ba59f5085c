"""A server of one's own: `serve("cats.onnx")` starts it, and it ends with the program."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

from tessera_serve.address import Authority
from tessera_serve.binary import find_binary
from tessera_serve.client import Client
from tessera_serve.errors import ServerLost, StartFailed
from tessera_serve.http_call import Answer, Call
from tessera_serve.serve_arguments import Models, serve_arguments
from tessera_serve.server_process import ServerProcess

# What a connection to this address goes to, where a server listens on all addresses.
LOOPBACK = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
# What a server may take to end beyond the time for requests that are under way.
SECONDS_BEYOND_DRAIN = 5.0


def serve(
    *models: Models,
    repository: str | os.PathLike[str] | None = None,
    token: str | None = None,
    ca: Authority = None,
    skip_failed: bool = False,
    start_seconds: float = 600.0,
    stop_seconds: float = 10.0,
    binary: str | os.PathLike[str] | None = None,
    **flags: Any,
) -> Server:
    """Starts a server for these models and waits until it is ready.

    A model is the path of an ONNX file, which is served under the file's name, or a dict of names
    and paths. The server ends with `close`, with its `with`, when nothing refers to it any more,
    and at the latest with this process.

    `repository` is the folder that blocks are kept in; without it, it is a temporary one. A model
    that can't be served is an error unless `skip_failed`. `start_seconds` and `stop_seconds` are
    how long it may take to be ready, and to end. `token` and `ca` are for this client, where the
    server has `token_file` and `tls_cert`.

    All else is a flag of `tessera serve`: `serve("cats.onnx", device="cuda:0", http=8000)`.
    """
    folder = Path(tempfile.mkdtemp(prefix="tessera-serve-"))
    process: ServerProcess | None = None
    try:
        place = folder / "repository" if repository is None else Path(repository).expanduser()
        flags.setdefault("drain", int(stop_seconds * 1000))
        arguments = serve_arguments(models, place, flags)
        process = ServerProcess([str(find_binary(binary)), *arguments], folder / "log")
        process.wait_until_ready(start_seconds)
        _check_failed(process, skip_failed)
        is_tls = flags.get("tls_cert") is not None
        return Server(process, folder, stop_seconds, token=token, ca=ca, is_tls=is_tls)
    except BaseException:
        _end(process, folder, stop_seconds, os.getpid())
        raise


class Server(Client):
    """A server of one's own, and a client of it."""

    def __init__(
        self,
        process: ServerProcess,
        folder: Path,
        stop_seconds: float,
        *,
        token: str | None = None,
        ca: Authority = None,
        is_tls: bool = False,
    ) -> None:
        scheme = "https" if is_tls else "http"
        self._process = process
        self._scheme = scheme
        # Also when it is collected, and when the interpreter ends.
        self._finalizer = weakref.finalize(self, _end, process, folder, stop_seconds, os.getpid())
        super().__init__(
            f"{scheme}://{_reachable(process.announcement['http'])}",
            f"{scheme}://{_reachable(process.announcement['control'])}",
            token=token,
            ca=ca,
        )

    @property
    def engine(self) -> str:
        """What computes, and its version: `onnxruntime 1.31.1`, or `rten`."""
        engine: str = self._process.announcement["engine"]
        return engine

    @property
    def process_id(self) -> int:
        """The process of the server."""
        process_id: int = self._process.announcement["process"]
        return process_id

    @property
    def grpc_address(self) -> str:
        """HOST:PORT of the protocol over gRPC."""
        return _reachable(self._process.announcement["grpc"])

    @property
    def metrics_url(self) -> str:
        """The page of metrics for Prometheus."""
        return f"{self._scheme}://{_reachable(self._process.announcement['metrics'])}/metrics"

    @property
    def failed(self) -> dict[str, str]:
        """The models that are not served, and why; see `skip_failed`."""
        return _failed_models(self._process)

    @property
    def is_running(self) -> bool:
        """Whether its process has not ended."""
        return self._process.is_running

    def log(self) -> str:
        """What the server has said on standard error; gone when it has been closed."""
        try:
            return self._process.log.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def close(self) -> None:
        """Has the server finish what it was asked, and end."""
        super().close()
        self._finalizer()

    def perform(self, call: Call[Answer]) -> Answer:
        """Sends a request and reads the answer."""
        try:
            return super().perform(call)
        except ServerLost as error:
            if not self._finalizer.alive:
                raise ServerLost("the server was closed") from error
            if not self.is_running:
                ending, words = self._process.ending(), self._process.last_words()
                raise ServerLost(f"the server {ending}{words}") from error
            raise

    def __repr__(self) -> str:
        if not self.is_running:
            return f"<tessera server at {self.url}, which {self._process.ending()}>"
        return f"<tessera server at {self.url}, process {self.process_id}>"


def _end(process: ServerProcess | None, folder: Path, stop_seconds: float, owner: int) -> None:
    """Ends a server and removes its temporary folder. A fork of its owner has no part in it."""
    if os.getpid() != owner:
        return
    try:
        if process is not None:
            process.stop(stop_seconds + SECONDS_BEYOND_DRAIN)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _reachable(address: str) -> str:
    """The address that reaches a listener on this machine."""
    host, _, port = address.rpartition(":")
    return f"{LOOPBACK.get(host, host)}:{port}"


def _failed_models(process: ServerProcess) -> dict[str, str]:
    failed = process.announcement.get("failed", [])
    return {model["name"]: model["reason"] for model in failed}


def _check_failed(process: ServerProcess, skip_failed: bool) -> None:
    failed = _failed_models(process)
    if failed and not skip_failed:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
        raise StartFailed(
            f"not all models can be served: {reasons} (skip_failed=True serves the others)"
        )
