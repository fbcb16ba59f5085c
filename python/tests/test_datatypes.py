"""Arrays of every datatype come back from a server as they went."""

from __future__ import annotations

from typing import Any

import models
import numpy as np
import numpy.typing as npt
import pytest
from conftest import served_task

import tessera_serve
from tessera_serve.bfloat16 import float32_of_bits
from tessera_serve.datatypes import bfloat16_dtype, dtype_of

# What is at the ends of a datatype's range, and in between.
VALUES: dict[str, npt.NDArray[Any]] = {
    "BOOL": np.array([[True, False], [False, True]]),
    "FP16": np.array([[np.nan, np.inf], [-np.inf, 65504.0]], np.float16),
    "FP32": np.array([[np.nan, np.inf], [-0.0, np.finfo(np.float32).tiny]], np.float32),
    "FP64": np.array([[np.nan, -np.inf], [1e-308, np.pi]], np.float64),
    "BF16": np.array([[1.0, -2.5], [np.inf, 3e38]]).astype(bfloat16_dtype()),
    "BYTES": np.array([["", "größe"], ["模型\n", "a\0b"]], object),
}
for name in ("UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"):
    limits = np.iinfo(dtype_of(name))
    VALUES[name] = np.array([[limits.min, limits.max], [0, 1]], dtype_of(name))


def values(server: tessera_serve.Server, datatype: str) -> npt.NDArray[Any]:
    """What to send; integers of rten have 32 bits."""
    if datatype == "INT64" and server.engine.startswith("rten"):
        return VALUES["INT32"].astype(np.int64)
    return VALUES[datatype]


def bits(array: npt.NDArray[Any]) -> Any:
    """What to compare: strings as they are, numbers by their bits, as NaN equals nothing."""
    return array.tolist() if array.dtype == object else array.tobytes()


@pytest.mark.parametrize("datatype", models.NUMBERS)
def test_an_array_comes_back_as_it_went(server: tessera_serve.Server, datatype: str) -> None:
    sent = values(server, datatype)
    got = served_task(server, models.identity_name(datatype))(sent)
    assert got.dtype == sent.dtype
    assert got.shape == sent.shape
    assert bits(got) == bits(sent)


@pytest.mark.parametrize("datatype", models.NUMBERS)
def test_an_array_without_elements_comes_back(server: tessera_serve.Server, datatype: str) -> None:
    sent = np.empty((0, 3), dtype_of(datatype))
    got = served_task(server, models.identity_name(datatype))(sent)
    assert got.shape == (0, 3)
    assert got.dtype == sent.dtype


@pytest.mark.parametrize("datatype", models.NUMBERS)
def test_the_answer_is_the_callers_own(server: tessera_serve.Server, datatype: str) -> None:
    got = served_task(server, models.identity_name(datatype))(values(server, datatype))
    assert got.flags.writeable and got.flags.aligned


def test_arrays_may_lie_in_memory_in_any_order(server: tessera_serve.Server) -> None:
    task = server["identity_fp32"]
    sent = np.arange(12, dtype=np.float32).reshape(3, 4)
    for array in (sent.T, sent[:, ::-2], np.asfortranarray(sent), sent.astype(">f4")):
        np.testing.assert_array_equal(task(array), array)


def test_bytes_that_are_no_text_come_back_as_the_same_bytes(server: tessera_serve.Server) -> None:
    task = served_task(server, "identity_bytes")
    got = task([[b"\xff\x00", b"plain"]])
    assert got[0, 1] == "plain"
    assert got[0, 0].encode("utf-8", "surrogateescape") == b"\xff\x00"
    assert task(got).tolist() == got.tolist()


def test_strings_of_numpy_are_strings(server: tessera_serve.Server) -> None:
    task = served_task(server, "identity_bytes")
    assert task(np.array([["größe", "b"]])).tolist() == [["größe", "b"]]
    assert task(np.array([[b"abc", b"d"]])).tolist() == [["abc", "d"]]


def test_bits_of_bfloat16_are_taken_as_they_are(server: tessera_serve.Server) -> None:
    sent = np.array([[0x3F80, 0x7FC0]], np.uint16)
    assert served_task(server, "identity_bf16")(sent).tobytes() == sent.tobytes()


def test_bfloat16_without_its_package_is_bits(
    server: tessera_serve.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tessera_serve.datatypes.bfloat16_dtype", lambda: np.dtype(np.uint16))
    got = served_task(server, "identity_bf16")([[1.0, -2.0]])
    assert got.dtype == np.uint16
    assert float32_of_bits(got).tolist() == [[1.0, -2.0]]


def test_a_large_array_comes_back(server: tessera_serve.Server) -> None:
    sent = np.arange(8_000_000, dtype=np.int64).reshape(100, -1)
    np.testing.assert_array_equal(server["identity_int64"](sent), sent)


def test_a_number_without_dimensions_comes_back(server: tessera_serve.Server) -> None:
    got = server["scalar"](1.5)
    assert got.shape == ()
    assert got == -1.5
