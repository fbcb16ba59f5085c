"""Strings as the bytes that the protocol sends: each after its length, in four bytes.

Strings are UTF-8. What is none comes back as a string all the same, with Python's escapes
(`surrogateescape`), and goes out again as the bytes that it was.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera_serve.errors import InvalidRequest, TesseraError

LENGTH = struct.Struct("<I")


def encode_strings(array: npt.NDArray[Any]) -> bytes:
    """The strings of an array, in the order of its memory."""
    parts: list[bytes] = []
    for element in array.reshape(-1).tolist():
        text = _bytes_of(element)
        parts.append(LENGTH.pack(len(text)))
        parts.append(text)
    return b"".join(parts)


def decode_strings(data: memoryview, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """An array of strings with this shape."""
    strings = []
    offset = 0
    while offset < len(data):
        if offset + LENGTH.size > len(data):
            raise _malformed(len(data))
        (length,) = LENGTH.unpack_from(data, offset)
        offset += LENGTH.size
        if offset + length > len(data):
            raise _malformed(len(data))
        strings.append(bytes(data[offset : offset + length]).decode("utf-8", "surrogateescape"))
        offset += length
    flat = np.empty(len(strings), dtype=object)
    flat[:] = strings
    try:
        return flat.reshape(shape)
    except ValueError:
        raise TesseraError(
            f"the answer has {len(strings)} strings, expected as many as the shape {shape} holds"
        ) from None


def _bytes_of(element: object) -> bytes:
    if isinstance(element, bytes):
        return element
    if isinstance(element, str):
        return element.encode("utf-8", "surrogateescape")
    raise InvalidRequest(
        f"an element is {element!r} ({type(element).__name__}), expected a string or bytes"
    )


def _malformed(length: int) -> TesseraError:
    return TesseraError(f"the answer's strings end after {length} bytes, expected more")
