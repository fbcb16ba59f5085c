"""Values of callers as arrays that an input takes, and arrays as bytes.

An array keeps its dtype: it is converted only where no value can change (`uint8` to `float32`),
unless the caller asks for a cast. What has no dtype of its own (numbers, strings, lists) becomes
what the input takes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera_serve.bfloat16 import bits_of_float32
from tessera_serve.datatypes import dtype_of, is_float
from tessera_serve.errors import InvalidRequest, TesseraError
from tessera_serve.http_call import Buffer
from tessera_serve.metadata import TensorMetadata
from tessera_serve.strings import decode_strings, encode_strings

Array = npt.NDArray[Any]


def array_for_input(value: object, tensor: TensorMetadata, *, cast: bool = False) -> Array:
    """The array that goes out for a value. `cast` allows that numbers are rounded."""
    try:
        if hasattr(value, "__array__"):
            return _converted_array(np.asarray(value), tensor, cast)
        return _array_of_plain_value(value, tensor)
    except InvalidRequest as error:
        raise InvalidRequest(f'input "{tensor.name}": {error}') from None
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise InvalidRequest(
            f'input "{tensor.name}": can\'t be made an array, expected {tensor}: {error}'
        ) from error


def bytes_of_array(array: Array, datatype: str) -> Buffer:
    """The bytes of an array as the protocol sends them, without a copy where that is possible."""
    if datatype == "BYTES":
        return encode_strings(array)
    little_endian = array.dtype.newbyteorder("<")
    flat = np.ascontiguousarray(array, dtype=little_endian).reshape(-1)
    return flat.view(np.uint8).data


def array_of_bytes(data: memoryview, datatype: str, shape: tuple[int, ...]) -> Array:
    """The array that bytes of an answer stand for; it is the caller's own."""
    if datatype == "BYTES":
        return decode_strings(data, shape)
    dtype = dtype_of(datatype)
    count = math.prod(shape)
    if len(data) != count * dtype.itemsize:
        raise TesseraError(
            f"an output of the answer has {len(data)} bytes, "
            f"expected {count * dtype.itemsize} for {datatype}{list(shape)}"
        )
    return np.frombuffer(data, dtype=dtype).reshape(shape).copy()


def _array_of_plain_value(value: object, tensor: TensorMetadata) -> Array:
    """Numbers, strings and lists, as what the input takes."""
    if tensor.datatype == "BYTES":
        return np.asarray(value, dtype=object)
    natural = np.asarray(value)
    if natural.size == 0:
        return natural.astype(tensor.dtype)
    if natural.dtype.kind == "b" and tensor.datatype == "BOOL":
        return natural
    if natural.dtype.kind in "biuf" and is_float(tensor.datatype):
        return _as_float(natural, tensor.datatype)
    if natural.dtype.kind in "biu" and tensor.dtype.kind in "iu":
        return _as_integer(natural, tensor.dtype)
    expected = {"b": "true or false", "f": "numbers"}.get(tensor.dtype.kind, "whole numbers")
    raise InvalidRequest(f"got {_shown(value)}, expected {expected} ({tensor.datatype})")


def _converted_array(array: Array, tensor: TensorMetadata, cast: bool) -> Array:
    """An array of the dtype that the input takes."""
    if tensor.datatype == "BYTES":
        return _as_strings(array)
    if tensor.datatype == "BF16":
        return _as_bfloat16(array, cast)
    if array.dtype == tensor.dtype:
        return array
    if np.can_cast(array.dtype, tensor.dtype, "safe"):
        return array.astype(tensor.dtype)
    if not np.can_cast(array.dtype, tensor.dtype, "same_kind"):
        raise InvalidRequest(f"has the dtype {array.dtype}, expected {tensor.dtype}")
    if not cast:
        raise _needs_cast(array, str(tensor.dtype))
    if tensor.dtype.kind in "iu":
        return _as_integer(array, tensor.dtype)
    return _as_float(array, tensor.datatype)


def _as_strings(array: Array) -> Array:
    if array.dtype.kind not in "OUST":
        raise InvalidRequest(
            f"has the dtype {array.dtype}, expected strings (object, str or bytes)"
        )
    return array.astype(object)


def _as_bfloat16(array: Array, cast: bool) -> Array:
    """Arrays of bfloat16, or of `uint16` with its bits, go out as they are."""
    if array.dtype == np.uint16 or array.dtype.name == "bfloat16":
        return array
    if array.dtype.kind not in "biuf":
        raise InvalidRequest(f"has the dtype {array.dtype}, expected bfloat16 or its bits (uint16)")
    if not cast:
        raise _needs_cast(array, "bfloat16")
    return _as_float(array, "BF16")


def _as_float(array: Array, datatype: str) -> Array:
    with np.errstate(over="ignore"):
        if datatype == "BF16":
            return bits_of_float32(array.astype(np.float32))
        converted = array.astype(dtype_of(datatype))
    if bool(np.any(np.isinf(converted) & np.isfinite(array))):
        largest = np.finfo(converted.dtype).max
        raise InvalidRequest(f"a number is out of range, expected at most {largest} ({datatype})")
    return converted


def _as_integer(array: Array, dtype: np.dtype[Any]) -> Array:
    limits = np.iinfo(dtype)
    if array.size > 0 and (int(array.min()) < limits.min or int(array.max()) > limits.max):
        raise InvalidRequest(f"a number is out of range, expected {limits.min} to {limits.max}")
    return array.astype(dtype)


def _needs_cast(array: Array, expected: str) -> InvalidRequest:
    return InvalidRequest(
        f'has the dtype {array.dtype}, expected {expected}: convert it with astype("{expected}"), '
        "or pass cast=True where numbers may be rounded"
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
