"""A port that leads to another one, to count connections and to break them."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


class Relay:
    """A port of this machine that leads to another."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()
        self.accepted: list[socket.socket] = []

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def break_connections(self) -> None:
        """Closes all connections, as a server does that stops."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        self.break_connections()
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self.accepted.append(near)
                self._sockets += [near, far]
                for ends in ((near, far), (far, near)):
                    self._threads.append(threading.Thread(target=_pump, args=ends))
                    self._threads[-1].start()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while received := source.recv(65536):
            target.sendall(received)
        target.shutdown(socket.SHUT_WR)
