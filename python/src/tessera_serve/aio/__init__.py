"""The client for asyncio: the same names as in `tessera_serve`, to be awaited.

from tessera_serve.aio import AsyncClient

async with AsyncClient("http://localhost:8000") as client:
    scores = await client["cats"](image)
"""

from __future__ import annotations

from tessera_serve.aio.client import AsyncClient
from tessera_serve.aio.event_stream import EventStream
from tessera_serve.aio.task import AsyncTask

__all__ = ["AsyncClient", "AsyncTask", "EventStream"]
