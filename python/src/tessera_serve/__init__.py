"""Serve ONNX models with Tessera, and ask them for answers.

    import numpy, tessera_serve

    server = tessera_serve.serve("cats.onnx")
    scores = server["cats"](numpy.zeros([1, 3, 224, 224], numpy.float32))

`serve` starts a server of one's own, `Client` asks one that runs elsewhere, and `tessera_serve.aio`
does so in asyncio.
"""

from __future__ import annotations

from tessera_serve.client import Client
from tessera_serve.control_calls import ExitStatus
from tessera_serve.errors import (
    AccessDenied,
    BinaryNotFound,
    DeadlineExceeded,
    ExecutionFailed,
    ExportFailed,
    InvalidRequest,
    NotFound,
    Refused,
    ServerLost,
    StartFailed,
    TesseraError,
    Unavailable,
    Unsupported,
)
from tessera_serve.event_stream import EventStream
from tessera_serve.exits import Exit, Exits
from tessera_serve.metadata import TaskMetadata, TensorMetadata
from tessera_serve.model_export import export
from tessera_serve.placement import placement_plugin
from tessera_serve.response import Response
from tessera_serve.server import Server, serve
from tessera_serve.task import Task
from tessera_serve.version import installed_version

__version__ = installed_version()

__all__ = [
    "AccessDenied",
    "BinaryNotFound",
    "Client",
    "DeadlineExceeded",
    "EventStream",
    "ExecutionFailed",
    "Exit",
    "ExitStatus",
    "Exits",
    "ExportFailed",
    "InvalidRequest",
    "NotFound",
    "Refused",
    "Response",
    "Server",
    "ServerLost",
    "StartFailed",
    "Task",
    "TaskMetadata",
    "TensorMetadata",
    "TesseraError",
    "Unavailable",
    "Unsupported",
    "__version__",
    "export",
    "placement_plugin",
    "serve",
]
