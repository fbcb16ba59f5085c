"""A connection of HTTP/1.1 over the streams of asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tessera_serve.address import Address
from tessera_serve.http_call import Buffer, Call, Reply

# Beyond this a line of a head is no line of HTTP; and so much of an answer is read at once.
LONGEST_LINE = 65536
READ_AT_ONCE = 65536
# Seconds that a connection may take to be gone once it was closed.
LONGEST_GOODBYE = 1.0
# Answers to these have no body, whatever their headers say.
WITHOUT_BODY = (204, 304)


class NotHttp(Exception):
    """What came is no answer of HTTP/1.1."""


@dataclass(frozen=True)
class Head:
    """Status and headers of an answer. The names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    keeps_alive: bool

    @property
    def is_chunked(self) -> bool:
        """Whether the body comes in chunks, of which each says its length."""
        return "chunked" in self.headers.get("transfer-encoding", "").lower()

    @property
    def tells_length(self) -> bool:
        """Whether the end of the body is known before the connection ends."""
        has_length = "content-length" in self.headers or self.is_chunked
        return has_length or self.status in WITHOUT_BODY


class Connection:
    """A connection to an address. Whoever is cancelled in the middle of an exchange closes it."""

    def __init__(
        self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._address = address
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, address: Address) -> Connection:
        """Connects."""
        reader, writer = await asyncio.open_connection(
            address.host, address.port, ssl=address.tls, limit=LONGEST_LINE
        )
        return cls(address, reader, writer)

    async def send(self, call: Call[Any], headers: Mapping[str, str]) -> None:
        """Sends a request. A server may answer, and close, before it has all of a large body."""
        self._writer.write(self._head_of(call, headers))
        try:
            async for part in _parts_of(call):
                self._writer.write(part)
                await self._writer.drain()
            await self._writer.drain()
        except ConnectionError:
            if call.body.length == 0:
                raise

    async def read_head(self) -> Head:
        """The status and headers of the answer; those before them (1xx) are passed over."""
        while True:
            head = await self._read_one_head()
            if head.status >= 200:
                return head

    async def read_reply(self) -> tuple[Reply, bool]:
        """The whole answer, and whether the connection can be used again."""
        head = await self.read_head()
        reply = await self.read_rest(head)
        return reply, head.keeps_alive and head.tells_length

    async def read_rest(self, head: Head) -> Reply:
        """The answer whose head this is."""
        if head.status in WITHOUT_BODY:
            return Reply(head.status, head.headers, b"")
        if "content-length" in head.headers:
            body = await self._reader.readexactly(_length(head.headers["content-length"]))
            return Reply(head.status, head.headers, body)
        pieces = [piece async for piece in self.pieces(head)]
        return Reply(head.status, head.headers, b"".join(pieces))

    async def pieces(self, head: Head) -> AsyncIterator[bytes]:
        """The body of an answer whose length is not known, as it comes."""
        if not head.is_chunked:
            while piece := await self._reader.read(READ_AT_ONCE):
                yield piece
            return
        while size := await self._read_chunk_size():
            yield await self._reader.readexactly(size)
            await self._reader.readline()
        while (await self._read_line()) != "":
            pass

    def close(self) -> None:
        """Closes it at once."""
        with contextlib.suppress(RuntimeError):
            # RuntimeError: its event loop has been closed, and the connection with it.
            self._writer.transport.abort()

    async def wait_closed(self) -> None:
        """Waits until nothing is left of a connection that was closed."""
        with contextlib.suppress(OSError, RuntimeError, asyncio.TimeoutError):
            await asyncio.wait_for(self._writer.wait_closed(), LONGEST_GOODBYE)

    def _head_of(self, call: Call[Any], headers: Mapping[str, str]) -> bytes:
        lines = [f"{call.method} {self._address.prefix}{call.path} HTTP/1.1"]
        lines.append(f"Host: {self._address.host_header}")
        lines.extend(f"{name}: {value}" for name, value in headers.items())
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    async def _read_one_head(self) -> Head:
        version, status = _read_status_line(await self._read_line())
        headers: dict[str, str] = {}
        while line := await self._read_line():
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        closes = headers.get("connection", "").lower() == "close"
        return Head(status, headers, version == "HTTP/1.1" and not closes)

    async def _read_line(self) -> str:
        line = await self._reader.readline()
        if not line.endswith(b"\n"):
            raise ConnectionResetError("the server has closed the connection")
        return line.decode("latin-1").rstrip("\r\n")

    async def _read_chunk_size(self) -> int:
        line = await self._read_line()
        try:
            return int(line.split(";")[0], 16)
        except ValueError:
            raise NotHttp(f"the size of a chunk is {line!r}") from None


async def _parts_of(call: Call[Any]) -> AsyncIterator[Buffer]:
    """The parts of a body. What is on a disk is read by another thread."""
    parts = call.body.parts()
    if not call.body.is_on_disk:
        for part in parts:
            yield part
        return
    loop = asyncio.get_running_loop()
    while (read := await loop.run_in_executor(None, _next_part, parts)) is not None:
        yield read


def _next_part(parts: Iterator[Buffer]) -> Buffer | None:
    return next(parts, None)


def _read_status_line(line: str) -> tuple[str, int]:
    version, _, rest = line.partition(" ")
    code = rest[:3]
    if not version.startswith("HTTP/") or not code.isdigit():
        raise NotHttp(f"the answer begins with {line[:60]!r}, expected HTTP/1.1")
    return version, int(code)


def _length(text: str) -> int:
    if not text.isdigit():
        raise NotHttp(f"the length of the answer is {text!r}")
    return int(text)
