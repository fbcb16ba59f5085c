"""What a task takes and gives, as the server describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera_serve.datatypes import dtype_of


@dataclass(frozen=True)
class TensorMetadata:
    """An input or an output. A size of -1 in `shape` is open."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of numpy for it."""
        return dtype_of(self.datatype)

    def __str__(self) -> str:
        sizes = ",".join("?" if size < 0 else str(size) for size in self.shape)
        return f"{self.name}: {self.datatype}[{sizes}]"


@dataclass(frozen=True)
class TaskMetadata:
    """What a task takes and gives."""

    name: str
    version: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]
    max_batch_size: int

    def __str__(self) -> str:
        inputs = ", ".join(map(str, self.inputs))
        outputs = ", ".join(map(str, self.outputs))
        return f"{self.name} ({inputs}) -> ({outputs})"


def read_task_metadata(document: Mapping[str, Any]) -> TaskMetadata:
    """The metadata of a task from the server's JSON."""
    versions = document.get("versions") or [""]
    properties = document.get("properties") or {}
    return TaskMetadata(
        name=document["name"],
        version=versions[-1],
        inputs=tuple(map(_read_tensor, document["inputs"])),
        outputs=tuple(map(_read_tensor, document["outputs"])),
        max_batch_size=int(properties.get("max_batch_size", 0)),
    )


def _read_tensor(document: Mapping[str, Any]) -> TensorMetadata:
    return TensorMetadata(
        name=document["name"],
        datatype=document["datatype"],
        shape=tuple(int(size) for size in document["shape"]),
    )
