"""Which files a model's weights are in, beside its own: read from the ONNX file without `onnx`.

An ONNX file is a message of protobuf. Of each message only the fields are read that lead to
tensors, so that weights within the file are passed over.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tessera_serve.errors import InvalidRequest

# How the value of a field is written.
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

# By message, the fields that lead to tensors, and what is in them (onnx.proto).
FIELDS: dict[str, dict[int, str]] = {
    "Model": {7: "Graph", 25: "Function"},
    "Graph": {1: "Node", 5: "Tensor", 15: "SparseTensor"},
    "Function": {7: "Node", 11: "Attribute"},
    "Node": {5: "Attribute"},
    "Attribute": {
        5: "Tensor",
        6: "Graph",
        10: "Tensor",
        11: "Graph",
        22: "SparseTensor",
        23: "SparseTensor",
    },
    "SparseTensor": {1: "Tensor", 2: "Tensor"},
    "Tensor": {13: "Entry"},
}
ENTRY_KEY, ENTRY_VALUE = 1, 2


@dataclass(frozen=True)
class Field:
    """A field of a message: its number, and where in the file its content is."""

    number: int
    start: int
    end: int
    has_content: bool


def external_locations(path: Path) -> list[str]:
    """The files that a model's tensors name, relative to its folder; each once, in order."""
    with path.open("rb") as file:
        if file.seek(0, 2) == 0:
            raise InvalidRequest(f"{path}: the file is empty, expected an ONNX model")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return list(dict.fromkeys(_locations(data, "Model", 0, len(data))))
            except (IndexError, UnicodeDecodeError):
                raise InvalidRequest(f"{path}: not an ONNX model") from None


def _locations(data: mmap.mmap, message: str, start: int, end: int) -> Iterator[str]:
    """The locations in a message, which goes from `start` to `end`."""
    if message == "Entry":
        yield from _location_of_entry(data, start, end)
        return
    for field in _fields(data, start, end):
        inner = FIELDS[message].get(field.number)
        if inner is not None and field.has_content:
            yield from _locations(data, inner, field.start, field.end)


def _location_of_entry(data: mmap.mmap, start: int, end: int) -> Iterator[str]:
    fields = {field.number: data[field.start : field.end] for field in _fields(data, start, end)}
    if fields.get(ENTRY_KEY) == b"location" and ENTRY_VALUE in fields:
        yield fields[ENTRY_VALUE].decode()


def _fields(data: mmap.mmap, start: int, end: int) -> Iterator[Field]:
    while start < end:
        tag, start = _varint(data, start)
        number, kind = tag >> 3, tag & 7
        if kind == BYTES:
            length, start = _varint(data, start)
        elif kind == VARINT:
            length = _varint(data, start)[1] - start
        else:
            length = _fixed_length(kind)
        if start + length > end:
            raise IndexError("a field goes on after its message")
        yield Field(number, start, start + length, kind == BYTES)
        start += length


def _fixed_length(kind: int) -> int:
    if kind == FIXED64:
        return 8
    if kind == FIXED32:
        return 4
    raise IndexError("a field of an unknown kind")


def _varint(data: mmap.mmap, start: int) -> tuple[int, int]:
    """A number in groups of seven bits, and where it ends."""
    value, shift = 0, 0
    while True:
        byte = data[start]
        value |= (byte & 0x7F) << shift
        start, shift = start + 1, shift + 7
        if byte < 0x80:
            return value, start
        if shift > 63:
            raise IndexError("a number is too long")
