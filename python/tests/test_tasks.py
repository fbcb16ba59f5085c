"""Tasks are called like functions, and say what they take, give and did."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera_serve
from tessera_serve import InvalidRequest, NotFound, TesseraError

A = np.array([[1, 2, 3, 4]], np.float32)
B = np.array([[10, 20, 30, 40]], np.float32)


def test_inputs_go_by_position_by_name_or_as_a_dict(server: tessera_serve.Server) -> None:
    pair = server["pair"]
    by_name: dict[str, Any] = {"b.1": B}
    for outputs in (pair(A, B), pair(A, **by_name), pair({"a": A, **by_name})):
        assert set(outputs) == {"sum", "difference"}
        np.testing.assert_array_equal(outputs["sum"], A + B)
        np.testing.assert_array_equal(outputs["difference"], A - B)


def test_an_output_alone_is_an_array(server: tessera_serve.Server) -> None:
    assert isinstance(server["identity_fp32"](A), np.ndarray)
    np.testing.assert_array_equal(server["pair"](A, B, outputs=["difference"]), A - B)


def test_a_response_says_whose_it_is(server: tessera_serve.Server) -> None:
    response = server["pair"].infer(A, B, request_id="me")
    assert (response.task, response.version, response.request_id) == ("pair", "1", "me")
    np.testing.assert_array_equal(response["sum"], A + B)
    assert response.exits == (None,)
    assert not response.degraded
    with pytest.raises(TesseraError, match="has the outputs sum, difference"):
        print(response.output)
    with pytest.raises(NotFound, match='no output "product", expected one of: sum, difference'):
        print(response["product"])


def test_a_task_says_what_it_takes_and_gives(server: tessera_serve.Server) -> None:
    pair = server["pair"]
    assert [str(port) for port in pair.inputs] == ["a: FP32[?,4]", "b.1: FP32[?,4]"]
    assert [port.name for port in pair.outputs] == ["sum", "difference"]
    assert pair.inputs[0].dtype == np.float32
    assert pair.inputs[0].shape == (-1, 4)
    assert pair.metadata.max_batch_size > 0
    assert repr(pair).startswith("<task pair (a: FP32[?,4], b.1: FP32[?,4]) -> (sum: ")
    assert pair.config()["platform"] == "onnxruntime_onnx"
    assert pair.status()["state"] == "ready"


def test_a_task_counts_what_it_did(server: tessera_serve.Server) -> None:
    task = server["identity_int8"]
    before = task.statistics()["inference_stats"]["success"]["count"]
    task([[1]])
    statistics = task.statistics()
    assert statistics["name"] == "identity_int8"
    assert statistics["inference_stats"]["success"]["count"] == before + 1


def test_a_version_may_be_named(server: tessera_serve.Server) -> None:
    np.testing.assert_array_equal(server.task("identity_fp32", "1")(A), A)
    with pytest.raises(NotFound):
        server.task("identity_fp32", "7")(A)


def test_inputs_that_do_not_fit_are_named(server: tessera_serve.Server) -> None:
    pair = server["pair"]
    with pytest.raises(InvalidRequest, match='task "pair": there is no input "c", expected: a: '):
        pair(A, B, c=A)
    with pytest.raises(InvalidRequest, match="got 3 inputs, expected: a: FP32"):
        pair(A, B, A)
    with pytest.raises(InvalidRequest, match='"a" is given by position and by name'):
        pair(A, a=A)
    with pytest.raises(InvalidRequest, match='input "b.1" is missing'):
        pair(A)
    with pytest.raises(InvalidRequest, match=r'input "a" expects f32\[batch,4\]'):
        pair(A[0], B)
    with pytest.raises(InvalidRequest, match='task "pair": input "a": has the dtype float64'):
        pair(A.astype(np.float64), B)
    with pytest.raises(InvalidRequest, match="deadline_ms is -1"):
        pair(A, B, deadline_ms=-1)


def test_a_task_that_has_changed_is_asked_again(server: tessera_serve.Server) -> None:
    server.put_task("changing", model="pair")
    task = server["changing"]
    np.testing.assert_array_equal(task(A, B)["sum"], A + B)
    server.put_task("changing", model="identity_int64")
    assert task(x=[[1, 2]]).tolist() == [[1, 2]]
    server.put_task("changing", model="identity_int8")
    # It has an input of that name still, and the server finds out that it is another.
    assert task([[1, 2]]).dtype == np.int8
    server.remove_task("changing")
