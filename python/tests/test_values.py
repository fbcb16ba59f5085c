"""What callers pass becomes what an input takes, or is refused with a reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera_serve.bfloat16 import bits_of_float32, float32_of_bits
from tessera_serve.datatypes import dtype_of
from tessera_serve.errors import InvalidRequest
from tessera_serve.metadata import TensorMetadata
from tessera_serve.tensors import array_for_input, array_of_bytes, bytes_of_array


def convert(value: object, datatype: str, *, cast: bool = False) -> Any:
    """The array that goes out."""
    return array_for_input(value, TensorMetadata("x", datatype, (-1,)), cast=cast)


@pytest.mark.parametrize(
    ("value", "datatype"),
    [
        ([1, 2], "FP32"),
        ([1.5, -2], "FP16"),
        ([[1.5], [2.5]], "FP64"),
        ([1, 2], "UINT8"),
        (7, "INT64"),
        (True, "BOOL"),
        ([True, False], "INT32"),
        ([], "INT32"),
        ([np.zeros(3), np.ones(3)], "FP32"),
        (np.arange(3, dtype=np.uint8), "FP32"),
        (np.arange(3, dtype=np.int16), "INT64"),
        (np.ones(2, np.float32), "FP64"),
    ],
)
def test_values_become_what_the_input_takes(value: object, datatype: str) -> None:
    got = convert(value, datatype)
    assert got.dtype == dtype_of(datatype)
    np.testing.assert_array_equal(got, np.asarray(value))


@pytest.mark.parametrize(
    ("value", "datatype", "expected"),
    [
        (np.zeros(2), "FP32", "has the dtype float64, expected float32: .*astype.*cast=True"),
        (np.zeros(2, np.int64), "FP32", "has the dtype int64, expected float32"),
        (np.zeros(2, np.int64), "INT32", "has the dtype int64, expected int32"),
        (np.zeros(2, np.float32), "INT32", "has the dtype float32, expected int32"),
        (np.zeros(2, np.float32), "BF16", "has the dtype float32, expected bfloat16"),
        (np.zeros(2, np.uint8), "BOOL", "has the dtype uint8, expected bool"),
        (np.zeros(2), "BYTES", "has the dtype float64, expected strings"),
        ([1.5], "INT64", r"got \[1.5\], expected whole numbers"),
        ([300], "UINT8", "out of range, expected 0 to 255"),
        ([-1], "UINT64", "out of range, expected 0 to"),
        ([2**70], "INT64", "expected whole numbers"),
        ([1e6], "FP16", "out of range"),
        (["1"], "FP32", "expected numbers"),
        ([1], "BOOL", "expected true or false"),
        ([[1], [2, 3]], "FP32", "can't be made an array"),
        (None, "FP32", "expected numbers"),
    ],
)
def test_what_would_change_is_refused(value: object, datatype: str, expected: str) -> None:
    with pytest.raises(InvalidRequest, match=f'input "x": .*{expected}'):
        convert(value, datatype)


def test_a_cast_rounds() -> None:
    got = convert(np.array([0.1, np.inf, np.nan]), "FP32", cast=True)
    np.testing.assert_array_equal(got, np.array([0.1, np.inf, np.nan], np.float32))
    assert convert(np.array([3, -4]), "INT8", cast=True).tolist() == [3, -4]


def test_a_cast_changes_no_number_into_another_kind() -> None:
    with pytest.raises(InvalidRequest, match="expected int32"):
        convert(np.array([1.5]), "INT32", cast=True)
    with pytest.raises(InvalidRequest, match="out of range"):
        convert(np.array([1e300]), "FP32", cast=True)
    with pytest.raises(InvalidRequest, match="out of range, expected -128 to 127"):
        convert(np.array([1000]), "INT8", cast=True)


def test_elements_that_are_no_strings_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="an element is None"):
        bytes_of_array(convert(["a", None], "BYTES"), "BYTES")


def test_whatever_has_an_array_is_one() -> None:
    class Tensor:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return np.ones(2, np.float32)

    np.testing.assert_array_equal(convert(Tensor(), "FP32"), [1, 1])


def test_numbers_become_the_nearest_bfloat16() -> None:
    numbers = np.array([1.0, 1.00390625, 1.01171875, -3.14159, np.inf, -np.inf, 1e-40], "f4")
    bits = bits_of_float32(numbers)
    back = float32_of_bits(bits)
    assert back[:3].tolist() == [1.0, 1.0, 1.015625]
    np.testing.assert_allclose(back[3:4], numbers[3:4], rtol=2**-8)
    assert back[4:6].tolist() == [np.inf, -np.inf]
    assert np.isnan(float32_of_bits(bits_of_float32(np.array([np.nan], "f4"))))[0]


def test_bfloat16_is_rounded_as_ml_dtypes_rounds() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    numbers = np.random.default_rng(1).normal(size=10_000).astype(np.float32)
    expected = numbers.astype(ml_dtypes.bfloat16).view(np.uint16)
    np.testing.assert_array_equal(bits_of_float32(numbers), expected)


def test_bytes_of_an_answer_may_begin_anywhere() -> None:
    data = memoryview(b"?" + np.arange(3, dtype=np.float64).tobytes())[1:]
    got = array_of_bytes(data, "FP64", (3,))
    assert got.tolist() == [0, 1, 2]
    assert got.flags.aligned
