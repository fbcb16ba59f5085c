"""What happens at a server, as it happens."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from tessera_serve.errors import ServerLost
from tessera_serve.event_parser import Event, EventParser

if TYPE_CHECKING:
    from typing_extensions import Self

RECEIVED_AT_ONCE = 65536


class EventStream(Iterator[Event]):
    """The events since it was opened; ends when it is closed, which any thread may do.

    Each event is a dict with a `kind`: `request`, `up`, `down`, `system`, `usage` or `lagged`.
    """

    def __init__(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> None:
        self._connection = connection
        self._socket: socket.socket | None = connection.sock
        self._response = response
        self._parser = EventParser()
        self._received: deque[Event] = deque()
        self._is_closed = False

    def __next__(self) -> Event:
        while not self._received:
            if self._is_closed:
                raise StopIteration
            self._received.extend(self._parser.feed(self._receive()))
        return self._received.popleft()

    def close(self) -> None:
        """Ends the stream, also for a thread that waits for the next event."""
        self._is_closed = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _receive(self) -> bytes:
        try:
            received = self._response.read1(RECEIVED_AT_ONCE)
        except (OSError, ValueError, AttributeError, http.client.HTTPException) as error:
            if self._is_closed:
                raise StopIteration from None
            raise ServerLost(f"the events have ended: {error}") from error
        if received:
            return received
        if self._is_closed:
            raise StopIteration
        self.close()
        raise ServerLost("the events have ended: the server has closed the connection")
