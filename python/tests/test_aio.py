"""The client for asyncio does what the other one does."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
from conftest import served_task
from relay import Relay
from test_access import CHANGE, write_certificate
from test_connections import port_of
from test_datatypes import bits, values

import tessera_serve
from tessera_serve import (
    AccessDenied,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    ServerLost,
    TesseraError,
)
from tessera_serve.aio import AsyncClient

A = np.array([[1, 2, 3, 4]], np.float32)
Scenario = Callable[[AsyncClient], Awaitable[None]]


def run(server: tessera_serve.Server, scenario: Scenario) -> None:
    """Runs a scenario with a client of a server."""

    async def main() -> None:
        async with server.async_client() as client:
            await scenario(client)

    asyncio.run(main())


@pytest.mark.parametrize("datatype", models.NUMBERS)
def test_an_array_comes_back_as_it_went(server: tessera_serve.Server, datatype: str) -> None:
    name = served_task(server, models.identity_name(datatype)).name

    async def scenario(client: AsyncClient) -> None:
        sent = values(server, datatype)
        assert bits(await client[name](sent)) == bits(sent)

    run(server, scenario)


def test_tasks_say_what_they_take_give_and_did(server: tessera_serve.Server) -> None:
    async def scenario(client: AsyncClient) -> None:
        pair = client["pair"]
        response = await pair.infer({"a": A, "b.1": A}, request_id="me")
        assert response.request_id == "me"
        np.testing.assert_array_equal(response["sum"], 2 * A)
        assert [port.name for port in await pair.inputs()] == ["a", "b.1"]
        assert [port.name for port in await pair.outputs()] == ["sum", "difference"]
        assert (await pair.statistics())["name"] == "pair"
        assert (await pair.config())["platform"] == "onnxruntime_onnx"
        assert (await pair.status())["state"] == "ready"
        assert repr(pair).startswith("<task pair (a: FP32")
        assert await client.is_ready()

    run(server, scenario)


def test_exits_are_read_and_set(server: tessera_serve.Server) -> None:
    async def scenario(client: AsyncClient) -> None:
        task = client["classifier"]
        sent = np.ones([1, 3], np.float32)
        assert (await task.infer(sent)).exit is None
        assert (await task.set_threshold("early", 1.0)).threshold == 1.0
        assert (await task.infer(sent)).exit == "early"
        assert (await task.exits())["early"].threshold == 1.0
        await task.set_threshold("early", 0.1)

    run(server, scenario)


def test_the_control_plane_can_be_asked(server: tessera_serve.Server) -> None:
    async def scenario(client: AsyncClient) -> None:
        await client.put_task("copy", model="identity_fp32")
        np.testing.assert_array_equal(await client["copy"](A), A)
        assert "copy" in [task["name"] for task in await client.tasks()]
        await client.remove_task("copy")
        unit = (await client.units())[0]["name"]
        assert (await client.unit(unit))["name"] == unit
        assert (await client.ping_unit(unit))["answers"]
        assert (await client.put_system(await client.system()))["started"] == []
        with pytest.raises(TesseraError):
            await client.plan()

    run(server, scenario)


def test_errors_are_the_same(server: tessera_serve.Server) -> None:
    async def scenario(client: AsyncClient) -> None:
        with pytest.raises(NotFound, match='unknown task "nothing"'):
            await client["nothing"](A)
        with pytest.raises(InvalidRequest, match="has the dtype float64"):
            await client["identity_fp32"](A.astype(np.float64))
        with pytest.raises(DeadlineExceeded):
            await client["counting"]([0.0], deadline_ms=200)
        with pytest.raises(NotFound):
            await AsyncClient(server.url, server.url).events()

    run(server, scenario)


def test_many_requests_are_under_way_at_a_time(server: tessera_serve.Server) -> None:
    async def main() -> None:
        async with AsyncClient(server.url, connections=8) as client:
            task = client["identity_int64"]
            asked = [task([[number] * 20]) for number in range(300)]
            for number, got in enumerate(await asyncio.gather(*asked)):
                assert np.all(got == number)

    asyncio.run(main())


def test_a_large_array_comes_back(server: tessera_serve.Server) -> None:
    async def scenario(client: AsyncClient) -> None:
        sent = np.arange(4_000_000, dtype=np.int64).reshape(100, -1)
        np.testing.assert_array_equal(await client["identity_int64"](sent), sent)

    run(server, scenario)


def test_a_connection_is_used_again_and_replaced_where_it_was_closed(
    server: tessera_serve.Server,
) -> None:
    async def main() -> None:
        with Relay(port_of(server.url)) as relay:
            async with AsyncClient(relay.url) as client:
                for number in range(5):
                    assert await client["identity_int64"]([[number]]) == [[number]]
                assert len(relay.accepted) == 1
                relay.break_connections()
                assert await client["identity_int64"]([[7]]) == [[7]]
                assert len(relay.accepted) == 2

    asyncio.run(main())


def test_who_is_cancelled_closes_the_connection(server: tessera_serve.Server) -> None:
    async def scenario(client: AsyncClient) -> None:
        async with await client.events() as events:
            asked = client["counting"].infer([0.0], deadline_ms=20_000, request_id="left")
            began = time.monotonic()
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(asked, 0.3)
            async for event in events:
                if event.get("id") == "left":
                    assert event["outcome"] == "cancelled"
                    break
            assert time.monotonic() - began < 10
        np.testing.assert_array_equal(await client["identity_fp32"](A), A)

    run(server, scenario)


def test_events_end_when_they_are_closed(server: tessera_serve.Server) -> None:
    async def scenario(client: AsyncClient) -> None:
        events = await client.events()
        waiting = asyncio.ensure_future(_count(events))
        await asyncio.sleep(0.2)
        await events.close()
        await asyncio.wait_for(waiting, 5)

    run(server, scenario)


async def _count(events: Any) -> int:
    return len([event async for event in events])


# What a loop leaves open when it ends is closed with a warning, as with any client.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_client_may_be_used_in_one_loop_after_another(server: tessera_serve.Server) -> None:
    client = AsyncClient(server.url)

    async def ask() -> Any:
        return await client["identity_fp32"](A)

    for _ in range(2):
        np.testing.assert_array_equal(asyncio.run(ask()), A)
    asyncio.run(client.close())
    gc.collect()


def test_a_server_that_is_not_there_is_lost() -> None:
    async def main() -> None:
        client = AsyncClient("http://127.0.0.1:9")
        assert not await client.is_ready()
        with pytest.raises(ServerLost, match="http://127.0.0.1:9"):
            await client["cats"](A)
        with pytest.raises(TesseraError, match="control_url="):
            await client.tasks()

    asyncio.run(main())


def test_tokens_and_tls_are_spoken(model_folder: Path, tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    tokens = tmp_path / "tokens"
    tokens.write_text(f"ops change,infer {CHANGE}\n")
    files: dict[str, Any] = {"tls_cert": certificate, "tls_key": key, "token_file": tokens}
    model = model_folder / "identity_fp32.onnx"
    with tessera_serve.serve(model, ca=certificate, token=CHANGE, **files) as server:

        async def scenario(client: AsyncClient) -> None:
            np.testing.assert_array_equal(await client["identity_fp32"](A), A)
            async with await client.events() as events:
                assert (await events.__anext__())["kind"]
            async with AsyncClient(server.url, ca=certificate) as nobody:
                with pytest.raises(AccessDenied):
                    await nobody["identity_fp32"](A)

        run(server, scenario)
