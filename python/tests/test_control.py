"""The control plane: tasks, units, the whole system, and events."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import tessera_serve
from tessera_serve import Client, InvalidRequest, NotFound, ServerLost, TesseraError

X = np.ones([1, 2], np.float32)


def test_a_client_lists_tasks(server: tessera_serve.Server) -> None:
    assert "pair" in server
    assert "nothing" not in server
    tasks = {task["name"]: task for task in server.tasks()}
    assert list(server) == list(tasks)
    assert tasks["pair"]["state"] == "ready"


def test_a_task_is_put_and_removed(server: tessera_serve.Server) -> None:
    changed = server.put_task("copy", model="identity_fp32", deadline_ms=700, weight=2)
    assert changed["tasks"] == {"copy": "1"}
    np.testing.assert_array_equal(server["copy"](X), X)
    assert server["copy"].status()["definition"]["deadline_ms"] == 700
    server.remove_task("copy")
    with pytest.raises(NotFound):
        server["copy"](X)


@pytest.mark.parametrize(
    "definition", ["identity_fp32", ["identity_fp32"], {"path": ["identity_fp32"]}]
)
def test_a_task_is_put_by_its_definition(
    server: tessera_serve.Server, definition: str | list[str] | dict[str, list[str]]
) -> None:
    server.put_task("copy", definition, deadline_ms=600)
    np.testing.assert_array_equal(server["copy"](X), X)
    assert server["copy"].status()["definition"]["deadline_ms"] == 600
    server.remove_task("copy")


def test_what_is_wrong_with_a_task_is_told(server: tessera_serve.Server) -> None:
    with pytest.raises(InvalidRequest, match="dead_line"):
        server.put_task("copy", model="identity_fp32", dead_line=3)
    with pytest.raises(TesseraError, match="nothing"):
        server.put_task("copy", model="nothing")
    with pytest.raises(InvalidRequest, match="either the definition"):
        server.put_task("copy")
    with pytest.raises(NotFound, match="nothing"):
        server.remove_task("nothing")


def test_the_whole_system_is_read_and_put(server: tessera_serve.Server) -> None:
    before = server.system()
    assert "pair" in before["tasks"]
    changed = server.put_system(before)
    assert changed["started"] == []


def test_a_unit_is_stopped_and_started(server: tessera_serve.Server) -> None:
    unit = server["identity_uint8"].status()["path"][0]
    assert server.unit(unit)["name"] == unit
    assert unit in [each["name"] for each in server.units()]
    assert server.ping_unit(unit)["answers"][0]["error"] is None
    server.stop_unit(unit)
    with pytest.raises(tessera_serve.Unavailable):
        server["identity_uint8"]([[1]])
    assert not server.is_ready()
    server.start_unit(unit)
    assert server["identity_uint8"]([[1]]) == [[1]]
    assert server.is_ready()


def test_anything_else_can_be_asked(server: tessera_serve.Server) -> None:
    assert server.call_control("GET", "/openapi.json")["openapi"].startswith("3.")
    assert server.server_metadata()["name"] == "tessera"
    # This server is no controller of a cluster.
    with pytest.raises(TesseraError):
        server.plan()


def test_events_tell_of_requests(server: tessera_serve.Server) -> None:
    with server.events() as events:
        server["identity_fp32"](X, request_id="seen")
        event = next(event for event in events if event.get("id") == "seen")
    assert event["task"] == "identity_fp32"
    assert event["outcome"] == "answered"
    assert event["hops"][0]["computed_us"] > 0
    assert list(events) == []


def test_events_end_for_a_thread_that_waits(server: tessera_serve.Server) -> None:
    events = server.events()
    ended = threading.Event()

    def wait_for_all() -> None:
        for _ in events:
            pass
        ended.set()

    threading.Thread(target=wait_for_all, daemon=True).start()
    time.sleep(0.3)
    events.close()
    assert ended.wait(5)


def test_events_of_a_server_that_ends_are_lost() -> None:
    with tessera_serve.serve() as server:
        events = server.events()
    with pytest.raises(ServerLost, match="events"):
        list(events)
    events.close()


def test_a_port_without_events_says_so(server: tessera_serve.Server) -> None:
    client = Client(server.url, server.url)
    with pytest.raises(NotFound):
        client.events()
