"""A client for asyncio."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tessera_serve import control_calls, task_calls
from tessera_serve.address import Authority, control_url_beside, parse_address
from tessera_serve.aio.connection_pool import ConnectionPool
from tessera_serve.aio.event_stream import EventStream
from tessera_serve.aio.task import AsyncTask
from tessera_serve.client import DEFAULT_URL, bearer_headers, no_control_url
from tessera_serve.control_calls import Definition
from tessera_serve.errors import TesseraError
from tessera_serve.http_call import Answer, Call, Port
from tessera_serve.model_upload import model_upload_call
from tessera_serve.reply_errors import error_of, read_reply

if TYPE_CHECKING:
    from typing_extensions import Self


class AsyncClient:
    """Asks a server: `await client["cats"](image)` for an answer of the task cats.

    Has the methods of `tessera_serve.Client`, to be awaited. `connections` is how many requests
    are under way at a time; others wait here. Who is cancelled closes its connection, so that the
    server forgets the request.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        control_url: str | None = None,
        *,
        token: str | None = None,
        ca: Authority = None,
        timeout: float | None = 300.0,
        connections: int = 100,
    ) -> None:
        control_url = control_url or control_url_beside(url)
        self._token = token
        self._protocol = ConnectionPool(parse_address(url, ca), timeout, connections)
        self._control: ConnectionPool | None = None
        if control_url is not None:
            self._control = ConnectionPool(parse_address(control_url, ca), timeout, connections)

    @property
    def url(self) -> str:
        """The address of the protocol's port."""
        return self._protocol.address.url

    @property
    def control_url(self) -> str | None:
        """The address of the control plane; None where it is not known."""
        return None if self._control is None else self._control.address.url

    def __getitem__(self, name: str) -> AsyncTask:
        """The task with this name. That there is one shows when it is asked."""
        return AsyncTask(self, name)

    def task(self, name: str, version: str | None = None) -> AsyncTask:
        """The task with this name; the version that there is unless one is said."""
        return AsyncTask(self, name, version)

    async def server_metadata(self) -> dict[str, Any]:
        """Name, version and extensions of the server."""
        return await self.perform(task_calls.server_metadata_call())

    async def is_ready(self) -> bool:
        """Whether the server can be reached and all of its tasks answer."""
        try:
            await self.perform(task_calls.server_ready_call())
        except TesseraError:
            return False
        return True

    async def tasks(self) -> list[dict[str, Any]]:
        """Every task, and how it is: its name, version, state, path through units, and exits."""
        return await self.perform(control_calls.tasks_call())

    async def units(self) -> list[dict[str, Any]]:
        """Every unit, and how it is: its blocks, the tasks that share it, and its instances."""
        return await self.perform(control_calls.units_call())

    async def unit(self, unit: str) -> dict[str, Any]:
        """How a unit is; the beginning of its name is enough."""
        return await self._object(control_calls.unit_call(unit))

    async def ping_unit(self, unit: str) -> dict[str, Any]:
        """Asks every instance of a unit for a sign of life."""
        return await self._object(control_calls.unit_action_call(unit, "ping"))

    async def stop_unit(self, unit: str) -> dict[str, Any]:
        """Stops a unit until it is started again; its tasks answer no more."""
        return await self._object(control_calls.unit_action_call(unit, "stop"))

    async def start_unit(self, unit: str) -> dict[str, Any]:
        """Starts a unit that was stopped or has failed."""
        return await self._object(control_calls.unit_action_call(unit, "start"))

    async def put_task(
        self,
        name: str,
        definition: Definition | None = None,
        *,
        model: str | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """Adds a task or changes it; the others stay as they are. Says what was changed."""
        document = control_calls.task_definition(definition, model, fields)
        return await self._object(control_calls.put_task_call(name, document))

    async def remove_task(self, name: str) -> dict[str, Any]:
        """Stops serving a task. Says what was changed."""
        return await self._object(control_calls.remove_task_call(name))

    async def system(self) -> dict[str, Any]:
        """The tasks that there should be."""
        return await self._object(control_calls.system_call())

    async def put_system(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Makes these the tasks that there are. Says what was changed."""
        return await self._object(control_calls.put_system_call(document))

    async def plan(self) -> dict[str, Any]:
        """What the planner of a cluster would do, and why; controllers alone know."""
        return await self._object(control_calls.plan_call())

    async def put_model(
        self,
        name: str,
        path: str | os.PathLike[str],
        *,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Puts a model's file into the repository, so that tasks can name it."""
        # What lies beside the model is looked for on the disk.
        call = await asyncio.get_running_loop().run_in_executor(
            None, lambda: model_upload_call(name, path, is_dry_run=dry_run)
        )
        return await self._object(call)

    async def models(self) -> list[dict[str, Any]]:
        """The models of the repository."""
        return await self.perform(control_calls.models_call())

    async def remove_model(self, name: str) -> dict[str, Any]:
        """Takes a model out of the repository that no task serves."""
        return await self._object(control_calls.remove_model_call(name))

    async def call_control(self, method: str, path: str, document: object = None) -> Any:
        """Asks the control plane for anything else."""
        return await self.perform(control_calls.control_call(method, path, document))

    async def events(self) -> EventStream:
        """What happens from now on, as it happens. Close it, or use it in an `async with`."""
        call = control_calls.events_call()
        pool = self._pool_of(call)
        connection, head = await pool.open_stream(call, bearer_headers(self._token))
        if head.status == 200:
            return EventStream(connection, head)
        reply = await connection.read_rest(head)
        connection.close()
        await connection.wait_closed()
        raise error_of(call, reply)

    async def perform(self, call: Call[Answer]) -> Answer:
        """Sends a request and reads the answer."""
        reply = await self._pool_of(call).exchange(call, bearer_headers(self._token))
        return read_reply(call, reply)

    async def close(self) -> None:
        """Closes the connections that are open. The client opens others when it is used again."""
        await self._protocol.close()
        if self._control is not None:
            await self._control.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<asynchronous client of {self.url}>"

    def _pool_of(self, call: Call[Any]) -> ConnectionPool:
        if call.port is Port.PROTOCOL:
            return self._protocol
        if self._control is None:
            raise no_control_url(self.url)
        return self._control

    async def _object(self, call: Call[Any]) -> dict[str, Any]:
        """An answer that is an object of JSON."""
        answer = await self.perform(call)
        return answer if isinstance(answer, dict) else {}
