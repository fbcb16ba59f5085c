"""Connections stay open, serve many threads, and are replaced where they were closed."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from relay import Relay

import tessera_serve
from tessera_serve import Client


def port_of(url: str) -> int:
    """The port of an address."""
    return int(url.rsplit(":", 1)[1])


def test_a_connection_is_used_again(server: tessera_serve.Server) -> None:
    with Relay(port_of(server.url)) as relay, Client(relay.url) as client:
        for number in range(10):
            assert client["identity_int64"]([[number]]) == [[number]]
        assert len(relay.accepted) == 1


def test_a_connection_that_was_closed_is_replaced(server: tessera_serve.Server) -> None:
    with Relay(port_of(server.url)) as relay, Client(relay.url) as client:
        client["identity_int64"]([[1]])
        relay.break_connections()
        large = np.zeros([1, 3_000_000], np.int64)
        assert client["identity_int64"](large).shape == large.shape
        assert len(relay.accepted) == 2


def test_threads_get_their_own_answers(server: tessera_serve.Server) -> None:
    task = server["identity_int64"]

    def ask(number: int) -> bool:
        return bool(np.all(task(np.full([1, 50], number)) == number))

    with ThreadPoolExecutor(16) as threads:
        assert all(threads.map(ask, range(400)))


def test_a_client_outlives_a_restart_of_its_server(model_folder: Path, tmp_path: Path) -> None:
    model = model_folder / "identity_fp32.onnx"
    sent = np.ones([1, 2], np.float32)
    with tessera_serve.serve(model, repository=tmp_path) as first:
        ports: dict[str, Any] = {
            "http": port_of(first.url),
            "control": port_of(first.control_url or ""),
        }
        client = Client(first.url, first.control_url)
        task = client["identity_fp32"]
        task(sent)
        assert list(client) == ["identity_fp32"]
    with pytest.raises(tessera_serve.ServerLost):
        task(sent)
    # Without models it serves what it served before.
    with tessera_serve.serve(repository=tmp_path, **ports):
        np.testing.assert_array_equal(task(sent), sent)
        assert list(client) == ["identity_fp32"]
        client.close()
        np.testing.assert_array_equal(task(sent), sent)
        client.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_opens_connections_of_its_own(server: tessera_serve.Server) -> None:
    task = server["identity_int64"]
    task([[1]])
    child = os.fork()
    if child == 0:
        # Ends without the goodbyes of this process, which are not its own.
        os._exit(0 if task([[2]]) == [[2]] else 1)
    for number in range(20):
        assert task([[number]]) == [[number]]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert server.is_running
