"""A request to a server and the reply to it, without sockets: both clients share them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Callable, Generic, Protocol, TypeVar, Union
from urllib.parse import quote

Answer = TypeVar("Answer")
Buffer = Union[bytes, bytearray, memoryview]

# Bytes up to which parts of a body are put together before they are sent.
SENT_AS_ONE = 65536


class Port(Enum):
    """Which of a server's ports a request goes to."""

    PROTOCOL = "protocol"
    CONTROL = "control"


class Body(Protocol):
    """The content of a request, in parts. It can be read again where a request is sent again."""

    @property
    def length(self) -> int:
        """The bytes of all parts."""

    @property
    def is_on_disk(self) -> bool:
        """Whether to get the next part takes a read from a disk."""

    def parts(self) -> Iterator[Buffer]:
        """The parts, from the first to the last."""


@dataclass(frozen=True)
class MemoryBody:
    """Content that is in memory; it is sent from where it is."""

    buffers: Sequence[Buffer] = ()
    is_on_disk: bool = False

    @property
    def length(self) -> int:
        """The bytes of all buffers."""
        return sum(len(buffer) for buffer in self.buffers)

    def parts(self) -> Iterator[Buffer]:
        """The buffers that are not empty; as one where a copy costs less than another packet."""
        if self.length <= SENT_AS_ONE:
            return iter([b"".join(self.buffers)])
        return (buffer for buffer in self.buffers if len(buffer) > 0)


@dataclass(frozen=True)
class Reply:
    """What a server answered. The names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


@dataclass(frozen=True)
class Call(Generic[Answer]):
    """A request, and how the reply to it is read."""

    method: str
    path: str
    read: Callable[[Reply], Answer]
    port: Port = Port.PROTOCOL
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Body = field(default_factory=MemoryBody)

    def all_headers(self, token_headers: Mapping[str, str]) -> dict[str, str]:
        """Every header but that of the host."""
        headers = {**token_headers, **self.headers}
        if self.body.length > 0 or self.method in ("POST", "PUT"):
            headers["Content-Length"] = str(self.body.length)
        return headers


def json_body(document: object) -> MemoryBody:
    """A document as the content of a request."""
    return MemoryBody([json.dumps(document).encode()])


def path_of(*parts: str) -> str:
    """The path with these parts, whatever characters are in them: `/v2/models/my%20cats`."""
    return "/" + "/".join(quote(part, safe="") for part in parts)
