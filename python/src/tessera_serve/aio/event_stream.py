"""What happens at a server, as it happens, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING

from tessera_serve.aio.connection import Connection, Head, NotHttp
from tessera_serve.errors import ServerLost
from tessera_serve.event_parser import Event, EventParser

if TYPE_CHECKING:
    from typing_extensions import Self


class EventStream(AsyncIterator[Event]):
    """The events since it was opened; ends when it is closed.

    Each event is a dict with a `kind`: `request`, `up`, `down`, `system`, `usage` or `lagged`.
    """

    def __init__(self, connection: Connection, head: Head) -> None:
        self._connection = connection
        self._events = self._read_events(head)
        self._is_closed = False

    async def __anext__(self) -> Event:
        return await self._events.__anext__()

    async def close(self) -> None:
        """Ends the stream, also for a task that waits for the next event."""
        self._is_closed = True
        self._connection.close()
        await self._connection.wait_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _read_events(self, head: Head) -> AsyncIterator[Event]:
        parser = EventParser()
        reason = "the server has closed the connection"
        try:
            async for piece in self._connection.pieces(head):
                for event in parser.feed(piece):
                    yield event
        except (OSError, EOFError, NotHttp, asyncio.IncompleteReadError) as error:
            reason = str(error)
        if not self._is_closed:
            self._connection.close()
            raise ServerLost(f"the events have ended: {reason}")
