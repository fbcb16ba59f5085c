"""Connections of HTTP to one address, kept open between requests.

Each thread that asks at the same time has one of its own. A connection that the server has closed
meanwhile, as after a restart, is replaced without the caller noticing.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import ssl
import weakref
from collections import deque
from collections.abc import Mapping
from typing import Any

from tessera_serve.address import Address
from tessera_serve.errors import ServerLost
from tessera_serve.http_call import Call, Reply

# What says that a connection was closed before the server had begun to answer.
CLOSED = (ConnectionError, ssl.SSLError, http.client.BadStatusLine)
BROKEN = (OSError, http.client.HTTPException)


class ConnectionPool:
    """Connections to one address."""

    def __init__(self, address: Address, timeout: float | None) -> None:
        self.address = address
        self._timeout = timeout
        self._process = os.getpid()
        self._idle: deque[http.client.HTTPConnection] = deque()
        # Who forgets to close it leaves no connections behind.
        weakref.finalize(self, _close_all, self._idle)

    def exchange(self, call: Call[Any], token_headers: Mapping[str, str]) -> Reply:
        """Sends a request and waits for the answer."""
        headers = call.all_headers(token_headers)
        idle = self._take_idle()
        if idle is not None:
            try:
                return self._exchange_on(idle, call, headers)
            except _ClosedMeanwhile:
                self.close()
        try:
            return self._exchange_on(self._connect(), call, headers)
        except _ClosedMeanwhile as error:
            raise self._lost(error.cause) from error.cause

    def open_stream(
        self, call: Call[Any], token_headers: Mapping[str, str]
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Sends a request whose answer goes on; the connection is the caller's to close."""
        connection = self._connect()
        try:
            _send(connection, self._path(call), call, call.all_headers(token_headers))
            return connection, connection.getresponse()
        except BROKEN as error:
            connection.close()
            raise self._lost(error) from error
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        """Closes the connections that nobody uses."""
        _close_all(self._idle)

    def _path(self, call: Call[Any]) -> str:
        return self.address.prefix + call.path

    def _take_idle(self) -> http.client.HTTPConnection | None:
        if self._process != os.getpid():
            # After a fork the connections are those of the process before it.
            self._process = os.getpid()
            self._idle = deque()
            weakref.finalize(self, _close_all, self._idle)
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _connect(self) -> http.client.HTTPConnection:
        host, port, tls = self.address.host, self.address.port, self.address.tls
        if tls is None:
            return http.client.HTTPConnection(host, port, timeout=self._timeout)
        return http.client.HTTPSConnection(host, port, timeout=self._timeout, context=tls)

    def _exchange_on(
        self, connection: http.client.HTTPConnection, call: Call[Any], headers: Mapping[str, str]
    ) -> Reply:
        try:
            try:
                _send(connection, self._path(call), call, headers)
                response = connection.getresponse()
            except CLOSED as error:
                raise _ClosedMeanwhile(error) from error
            reply = whole_reply(response)
        except BROKEN as error:
            connection.close()
            raise self._lost(error) from error
        except BaseException:
            # Half an exchange: nobody may use the connection for the next one.
            connection.close()
            raise
        if connection.sock is not None:
            self._idle.append(connection)
        return reply

    def _lost(self, error: BaseException) -> ServerLost:
        reason = str(error) or type(error).__name__
        if isinstance(error, (TimeoutError, socket.timeout)):
            reason = f"no answer within {self._timeout} s"
        return ServerLost(f"{self.address.url}: {reason}")


def _close_all(connections: deque[http.client.HTTPConnection]) -> None:
    """Closes connections; other threads may take some of them meanwhile."""
    with contextlib.suppress(IndexError):
        while True:
            connections.pop().close()


class _ClosedMeanwhile(Exception):
    """A connection was closed before the server had begun to answer."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _send(
    connection: http.client.HTTPConnection,
    path: str,
    call: Call[Any],
    headers: Mapping[str, str],
) -> None:
    """Sends a request. A server may answer, and close, before it has all of a large body."""
    if connection.sock is None:
        connection.connect()
    body = call.body.parts() if call.body.length > 0 else None
    try:
        connection.request(call.method, path, body=body, headers=dict(headers))
    except ConnectionError:
        if body is None:
            raise


def whole_reply(response: http.client.HTTPResponse) -> Reply:
    """A reply, read to its end."""
    with response:
        body = response.read()
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Reply(response.status, headers, body)
