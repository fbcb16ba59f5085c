"""Connections of asyncio to one address, kept open between requests."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any

from tessera_serve.address import Address
from tessera_serve.aio.connection import Connection, Head, NotHttp
from tessera_serve.errors import ServerLost
from tessera_serve.http_call import Call, Reply

# What says that a connection was closed before the server had begun to answer.
CLOSED = (ConnectionError, ssl.SSLError)
BROKEN = (OSError, EOFError, ValueError, NotHttp, asyncio.TimeoutError)


class ConnectionPool:
    """Connections to one address; `most` is how many requests are under way at a time."""

    def __init__(self, address: Address, timeout: float | None, most: int) -> None:
        self.address = address
        self._timeout = timeout
        self._most = most
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: list[Connection] = []
        self._places: asyncio.Semaphore | None = None

    async def exchange(self, call: Call[Any], token_headers: Mapping[str, str]) -> Reply:
        """Sends a request and waits for the answer."""
        headers = call.all_headers(token_headers)
        async with self._places_of_loop():
            try:
                return await self._exchange(call, headers)
            except BROKEN as error:
                raise self._lost(error) from error

    async def open_stream(
        self, call: Call[Any], token_headers: Mapping[str, str]
    ) -> tuple[Connection, Head]:
        """Sends a request whose answer goes on; the connection is the caller's to close."""
        try:
            connection = await self._connect()
        except BROKEN as error:
            raise self._lost(error) from error
        try:
            await connection.send(call, call.all_headers(token_headers))
            return connection, await connection.read_head()
        except BROKEN as error:
            connection.close()
            raise self._lost(error) from error
        except BaseException:
            connection.close()
            raise

    async def close(self) -> None:
        """Closes the connections that nobody uses, and waits until they are gone."""
        for connection in self._close_idle():
            await connection.wait_closed()

    def _close_idle(self) -> list[Connection]:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        return idle

    def _places_of_loop(self) -> asyncio.Semaphore:
        """Places and connections belong to an event loop; those of another can't be used."""
        loop = asyncio.get_running_loop()
        if self._places is None or self._loop is not loop:
            self._close_idle()
            self._loop = loop
            self._places = asyncio.Semaphore(self._most)
        return self._places

    async def _connect(self) -> Connection:
        return await asyncio.wait_for(Connection.open(self.address), self._timeout)

    async def _exchange(self, call: Call[Any], headers: Mapping[str, str]) -> Reply:
        if self._idle:
            try:
                return await self._exchange_on(self._idle.pop(), call, headers)
            except CLOSED:
                # The server has closed it meanwhile, and so the others.
                self._close_idle()
        return await self._exchange_on(await self._connect(), call, headers)

    async def _exchange_on(
        self, connection: Connection, call: Call[Any], headers: Mapping[str, str]
    ) -> Reply:
        try:
            await connection.send(call, headers)
            reading = connection.read_reply()
            reply, is_reusable = await asyncio.wait_for(reading, self._timeout)
        except BaseException:
            # Half an exchange, also of who is cancelled: nobody may use it for the next one.
            connection.close()
            raise
        if is_reusable:
            self._idle.append(connection)
        else:
            connection.close()
        return reply

    def _lost(self, error: BaseException) -> ServerLost:
        reason = str(error) or type(error).__name__
        if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
            reason = f"no answer within {self._timeout} s"
        return ServerLost(f"{self.address.url}: {reason}")
