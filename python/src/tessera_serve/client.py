"""A client of a server that runs elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tessera_serve import control_calls, task_calls
from tessera_serve.address import Authority, control_url_beside, parse_address
from tessera_serve.connection_pool import ConnectionPool, whole_reply
from tessera_serve.control_calls import Definition
from tessera_serve.errors import TesseraError
from tessera_serve.event_stream import EventStream
from tessera_serve.http_call import Answer, Call, Port
from tessera_serve.model_upload import model_upload_call
from tessera_serve.reply_errors import error_of, read_reply
from tessera_serve.task import Task

if TYPE_CHECKING:
    from typing_extensions import Self

    from tessera_serve.aio import AsyncClient

DEFAULT_URL = "http://localhost:8000"


def no_control_url(url: str) -> TesseraError:
    """Why the control plane can't be asked."""
    return TesseraError(
        f'the control plane beside {url} is not known, expected control_url="http://HOST:8003"'
    )


def bearer_headers(token: str | None) -> dict[str, str]:
    """The headers that carry a token."""
    return {} if token is None else {"Authorization": f"Bearer {token}"}


class Client:
    """Asks a server: `client["cats"](image)` for an answer of the task cats.

    `url` is the port of the protocol, `control_url` that of the control plane; the latter is found
    where both have their usual ports, 8000 and 8003. `token` is one of the server's token file.
    `ca` is the file with the authority of the server's certificate, or an `ssl.SSLContext`.
    `timeout` is how many seconds the server may say nothing before it counts as lost: more than any
    deadline, and than it takes to load a model that is put.

    Threads may share a client. Connections stay open between requests, until `close`.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        control_url: str | None = None,
        *,
        token: str | None = None,
        ca: Authority = None,
        timeout: float | None = 300.0,
    ) -> None:
        control_url = control_url or control_url_beside(url)
        self._token = token
        self._authority = ca
        self._timeout = timeout
        self._protocol = ConnectionPool(parse_address(url, ca), timeout)
        self._control: ConnectionPool | None = None
        if control_url is not None:
            self._control = ConnectionPool(parse_address(control_url, ca), timeout)

    @property
    def url(self) -> str:
        """The address of the protocol's port."""
        return self._protocol.address.url

    @property
    def control_url(self) -> str | None:
        """The address of the control plane; None where it is not known."""
        return None if self._control is None else self._control.address.url

    def __getitem__(self, name: str) -> Task:
        """The task with this name. That there is one shows when it is asked."""
        return Task(self, name)

    def task(self, name: str, version: str | None = None) -> Task:
        """The task with this name; the version that there is unless one is said."""
        return Task(self, name, version)

    def __iter__(self) -> Iterator[str]:
        """The names of the tasks."""
        return iter([task["name"] for task in self.tasks()])

    def __contains__(self, name: object) -> bool:
        """Whether there is a task with this name."""
        return name in list(self)

    def server_metadata(self) -> dict[str, Any]:
        """Name, version and extensions of the server."""
        return self.perform(task_calls.server_metadata_call())

    def is_ready(self) -> bool:
        """Whether the server can be reached and all of its tasks answer."""
        try:
            self.perform(task_calls.server_ready_call())
        except TesseraError:
            return False
        return True

    def tasks(self) -> list[dict[str, Any]]:
        """Every task, and how it is: its name, version, state, path through units, and exits."""
        return self.perform(control_calls.tasks_call())

    def units(self) -> list[dict[str, Any]]:
        """Every unit, and how it is: its blocks, the tasks that share it, and its instances."""
        return self.perform(control_calls.units_call())

    def unit(self, unit: str) -> dict[str, Any]:
        """How a unit is; the beginning of its name is enough."""
        return self._object(control_calls.unit_call(unit))

    def ping_unit(self, unit: str) -> dict[str, Any]:
        """Asks every instance of a unit for a sign of life."""
        return self._object(control_calls.unit_action_call(unit, "ping"))

    def stop_unit(self, unit: str) -> dict[str, Any]:
        """Stops a unit until it is started again; its tasks answer no more."""
        return self._object(control_calls.unit_action_call(unit, "stop"))

    def start_unit(self, unit: str) -> dict[str, Any]:
        """Starts a unit that was stopped or has failed."""
        return self._object(control_calls.unit_action_call(unit, "start"))

    def put_task(
        self,
        name: str,
        definition: Definition | None = None,
        *,
        model: str | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """Adds a task or changes it; the others stay as they are. Says what was changed.

        Either `model`, or `definition`: a list of blocks, or a whole document. Fields are those of
        a task (`deadline_ms=500`, `degrade=True`, `replicas=2`).
        """
        document = control_calls.task_definition(definition, model, fields)
        return self._object(control_calls.put_task_call(name, document))

    def remove_task(self, name: str) -> dict[str, Any]:
        """Stops serving a task. Says what was changed."""
        return self._object(control_calls.remove_task_call(name))

    def system(self) -> dict[str, Any]:
        """The tasks that there should be."""
        return self._object(control_calls.system_call())

    def put_system(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Makes these the tasks that there are. Says what was changed."""
        return self._object(control_calls.put_system_call(document))

    def plan(self) -> dict[str, Any]:
        """What the planner of a cluster would do, and why; controllers alone know."""
        return self._object(control_calls.plan_call())

    def put_model(
        self,
        name: str,
        path: str | os.PathLike[str],
        *,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Puts a model's file into the repository, so that tasks can name it.

        External data, exits and labels that lie beside the file go with it. It is sent as it is
        read, and never wholly in memory. With `dry_run` the server says what it would do.
        """
        return self._object(model_upload_call(name, path, is_dry_run=dry_run))

    def models(self) -> list[dict[str, Any]]:
        """The models of the repository."""
        return self.perform(control_calls.models_call())

    def remove_model(self, name: str) -> dict[str, Any]:
        """Takes a model out of the repository that no task serves."""
        return self._object(control_calls.remove_model_call(name))

    def call_control(self, method: str, path: str, document: object = None) -> Any:
        """Asks the control plane for anything else: `client.call_control("GET", "/v1/nodes")`."""
        return self.perform(control_calls.control_call(method, path, document))

    def events(self) -> EventStream:
        """What happens from now on, as it happens. Close it, or use it in a `with`."""
        call = control_calls.events_call()
        pool = self._pool_of(call)
        connection, response = pool.open_stream(call, bearer_headers(self._token))
        if response.status == 200:
            return EventStream(connection, response)
        reply = whole_reply(response)
        connection.close()
        raise error_of(call, reply)

    def async_client(self) -> AsyncClient:
        """A client for asyncio of the same server."""
        from tessera_serve.aio import AsyncClient

        return AsyncClient(
            self.url,
            self.control_url,
            token=self._token,
            ca=self._authority,
            timeout=self._timeout,
        )

    def perform(self, call: Call[Answer]) -> Answer:
        """Sends a request and reads the answer."""
        reply = self._pool_of(call).exchange(call, bearer_headers(self._token))
        return read_reply(call, reply)

    def close(self) -> None:
        """Closes the connections that are open. The client opens others when it is used again."""
        self._protocol.close()
        if self._control is not None:
            self._control.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<client of {self.url}>"

    def _pool_of(self, call: Call[Any]) -> ConnectionPool:
        if call.port is Port.PROTOCOL:
            return self._protocol
        if self._control is None:
            raise no_control_url(self.url)
        return self._control

    def _object(self, call: Call[Any]) -> dict[str, Any]:
        """An answer that is an object of JSON."""
        answer = self.perform(call)
        return answer if isinstance(answer, dict) else {}
