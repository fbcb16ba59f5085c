"""Server-Sent Events, from the bytes in which they come."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

Event = dict[str, Any]


class EventParser:
    """Takes bytes as they come, and gives the events that are whole."""

    def __init__(self) -> None:
        self._unfinished = b""
        self._data: list[str] = []

    def feed(self, received: bytes) -> Iterator[Event]:
        """The events that these bytes complete."""
        *lines, self._unfinished = (self._unfinished + received).split(b"\n")
        for line in lines:
            event = self._take_line(line.decode().rstrip("\r"))
            if event is not None:
                yield event

    def _take_line(self, line: str) -> Event | None:
        """An event ends with an empty line; lines that are no data are comments and names."""
        if line.startswith("data:"):
            self._data.append(line[len("data:") :].strip())
            return None
        if line or not self._data:
            return None
        event: Event = json.loads("\n".join(self._data))
        self._data = []
        return event
