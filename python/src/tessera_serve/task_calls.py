"""What can be asked of the protocol's port, beside inference."""

from __future__ import annotations

from typing import Any

from tessera_serve.errors import TesseraError
from tessera_serve.http_call import Call, Reply, path_of
from tessera_serve.metadata import TaskMetadata, read_task_metadata


def metadata_call(name: str, version: str | None) -> Call[TaskMetadata]:
    """What a task takes and gives."""
    return Call("GET", _task_path(name, version), lambda reply: read_task_metadata(reply.json()))


def statistics_call(name: str, version: str | None) -> Call[dict[str, Any]]:
    """What a task did so far."""
    return Call("GET", _task_path(name, version, "stats"), _read_statistics)


def config_call(name: str, version: str | None) -> Call[dict[str, Any]]:
    """The configuration of a task, in Triton's form."""
    return Call("GET", _task_path(name, version, "config"), _read_document)


def server_metadata_call() -> Call[dict[str, Any]]:
    """Name, version and extensions of the server."""
    return Call("GET", path_of("v2"), _read_document)


def server_ready_call() -> Call[None]:
    """Whether every task answers: an error where one does not."""
    return Call("GET", path_of("v2", "health", "ready"), lambda reply: None)


def _task_path(name: str, version: str | None, *parts: str) -> str:
    versions = [] if version is None else ["versions", version]
    return path_of("v2", "models", name, *versions, *parts)


def _read_document(reply: Reply) -> dict[str, Any]:
    document = reply.json()
    if not isinstance(document, dict):
        raise TesseraError(f"the server answered {document!r}, expected an object of JSON")
    return document


def _read_statistics(reply: Reply) -> dict[str, Any]:
    statistics: dict[str, Any] = _read_document(reply)["model_stats"][0]
    return statistics
