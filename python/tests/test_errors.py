"""Errors of servers are exceptions with the server's message."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tessera_serve
from tessera_serve import (
    Client,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    Refused,
    ServerLost,
    TesseraError,
)
from tessera_serve.http_call import Call, Reply
from tessera_serve.reply_errors import error_of

X = np.ones([1, 4], np.float32)


def test_a_task_that_is_not_there_is_not_found(server: tessera_serve.Server) -> None:
    with pytest.raises(NotFound, match='unknown task "nothing"') as caught:
        server["nothing"](X)
    assert caught.value.status == 404
    assert isinstance(caught.value, KeyError)


def test_a_request_that_makes_no_sense_is_invalid(server: tessera_serve.Server) -> None:
    with pytest.raises(InvalidRequest, match="nothing") as caught:
        server["pair"](X, X, outputs=["nothing"], request_id="me")
    assert caught.value.status == 400
    assert caught.value.request_id == "me"
    assert isinstance(caught.value, ValueError)


def test_a_deadline_that_passes_is_an_error(server: tessera_serve.Server) -> None:
    endless = server["counting"]
    with pytest.raises(DeadlineExceeded) as caught:
        endless([0.0], deadline_ms=200)
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.status == 503


def test_what_can_not_be_done_in_time_is_refused(server: tessera_serve.Server) -> None:
    slow = server["counting"]
    for _ in range(3):
        slow([1e-4])

    def ask(_: int) -> object:
        try:
            return slow([1e-4], deadline_ms=60)
        except (Refused, DeadlineExceeded) as error:
            return error

    with ThreadPoolExecutor(32) as threads:
        outcomes = list(threads.map(ask, range(200)))
    refused = [outcome for outcome in outcomes if isinstance(outcome, Refused)]
    assert refused, outcomes
    assert refused[0].retry_after >= 1
    assert "requests before it" in str(refused[0])


def test_a_server_that_is_not_there_is_lost() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    client = Client(f"http://127.0.0.1:{port}")
    with pytest.raises(ServerLost, match=f"http://127.0.0.1:{port}: .*refused") as caught:
        client["cats"](X)
    assert isinstance(caught.value, ConnectionError)
    assert not client.is_ready()


def test_a_server_that_says_nothing_is_lost() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = Client(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.2)
        with pytest.raises(ServerLost, match="no answer within 0.2 s"):
            client["cats"](X)


def test_an_answer_that_ends_in_the_middle_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        answering = threading.Thread(target=_answer_a_part, args=[listener])
        answering.start()
        client = Client(f"http://127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(ServerLost):
            client.server_metadata()
        answering.join()


def _answer_a_part(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")


def test_a_control_plane_that_is_not_known_is_asked_for() -> None:
    assert Client("http://some-host").control_url is None
    assert Client("http://some-host:8000").control_url == "http://some-host:8003"
    assert Client("https://some-host:8000/").control_url == "https://some-host:8003"
    with pytest.raises(TesseraError, match="control_url="):
        Client("http://some-host:9000").tasks()


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://host:99999"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="expected"):
        Client(url)


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        (400, "no", tessera_serve.InvalidRequest),
        (401, "who?", tessera_serve.AccessDenied),
        (403, "not you", tessera_serve.AccessDenied),
        (404, "where?", tessera_serve.NotFound),
        (413, "too much", tessera_serve.InvalidRequest),
        (500, "broken", tessera_serve.ExecutionFailed),
        (501, "what?", tessera_serve.Unsupported),
        (503, "the server is about to stop", tessera_serve.Unavailable),
        (503, "the deadline passed on the way", tessera_serve.DeadlineExceeded),
        (302, "elsewhere", TesseraError),
    ],
)
def test_a_status_is_a_class_of_errors(
    status: int, message: str, expected: type[TesseraError]
) -> None:
    error = _error(Reply(status, {}, b'{"error": "%s"}' % message.encode()))
    assert type(error) is expected
    assert str(error) == message


def test_an_error_without_json_is_told_as_it_is() -> None:
    assert str(_error(Reply(502, {}, b"<html>bad gateway"))) == "<html>bad gateway"
    assert "answered with 502" in str(_error(Reply(502, {}, b"")))


def _error(reply: Reply) -> TesseraError:
    call: Call[Any] = Call("GET", "/v2", lambda reply: None)
    return error_of(call, reply)
