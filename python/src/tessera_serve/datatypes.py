"""The protocol's names of element types, and the dtypes of numpy that they stand for."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tessera_serve.errors import InvalidRequest

DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BYTES": np.dtype(np.object_),
}


def dtype_of(datatype: str) -> np.dtype[Any]:
    """The dtype of arrays with this datatype.

    BF16 is `ml_dtypes.bfloat16` where that package is installed, else `uint16` with the bits.
    """
    if datatype == "BF16":
        return bfloat16_dtype()
    if datatype not in DTYPES:
        known = ", ".join([*DTYPES, "BF16"])
        raise InvalidRequest(f'unknown datatype "{datatype}", expected one of {known}')
    return DTYPES[datatype]


@functools.cache
def bfloat16_dtype() -> np.dtype[Any]:
    """The dtype of BF16 arrays."""
    try:
        import ml_dtypes
    except ImportError:
        return np.dtype(np.uint16)
    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


def is_float(datatype: str) -> bool:
    """Whether elements of this datatype are floating-point numbers."""
    return datatype in ("FP16", "FP32", "FP64", "BF16")
