"""bfloat16 without a package for it: the upper half of the bits of a float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def bits_of_float32(array: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The bits of the nearest bfloat16 numbers, the even one of two that are as near."""
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32).astype(np.uint64)
    is_even = (bits >> np.uint64(16)) & np.uint64(1)
    rounded = (bits + np.uint64(0x7FFF) + is_even) >> np.uint64(16)
    quiet_nan = (bits >> np.uint64(16)) | np.uint64(0x40)
    return np.where(np.isnan(array), quiet_nan, rounded).astype(np.uint16)


def float32_of_bits(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The numbers that bits of bfloat16 stand for, for arrays that came back as `uint16`."""
    wide: npt.NDArray[Any] = np.ascontiguousarray(bits, dtype=np.uint16).astype(np.uint32)
    return (wide << np.uint32(16)).view(np.float32)
