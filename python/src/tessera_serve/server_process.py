"""A process of `tessera serve`: started, watched until it ends, and ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tessera_serve.binary import binary_environment
from tessera_serve.errors import StartFailed

LAUNCHER = Path(__file__).with_name("end_with_parent.py")
# How many of the last lines of its log an error shows.
SHOWN_LINES = 12


class ServerProcess:
    """A process that serves. What it says on standard error goes to the file `log`.

    A thread waits for its end, so that it is never a zombie. It ends with this process, however
    that ends, as Linux sees to it.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.log = log
        self.announcement: dict[str, Any] = {}
        self.exit_code: int | None = None
        self._command = _ending_with_parent(list(command))
        self._environment = binary_environment()
        self._process: subprocess.Popen[bytes] | None = None
        self._started = threading.Event()
        self._announced = threading.Event()
        self._ended = threading.Event()
        # Held while its end is taken notice of, after which its number may be another's.
        self._ending = threading.Lock()
        self._error: BaseException | None = None
        # Linux ends the process with the thread that started it: this one stays until then.
        threading.Thread(target=self._start_and_watch, name="tessera-server", daemon=True).start()

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return not self._ended.is_set()

    def wait_until_ready(self, seconds: float) -> None:
        """Waits for the line in which it says that it is ready."""
        if not self._announced.wait(seconds):
            raise StartFailed(f"the server was not ready after {seconds:g} s{self.last_words()}")
        if self._error is not None:
            raise StartFailed(f"the server can't be started: {self._error}") from self._error
        if not self.announcement:
            self._ended.wait()
            raise StartFailed(f"the server {self.ending()}{self.last_words()}")

    def stop(self, seconds: float) -> None:
        """Has it end; where it takes longer than this, ends it by force."""
        self._started.wait()
        try:
            self._send_signal(signal.SIGTERM)
            self._ended.wait(seconds)
        finally:
            if self.is_running:
                self._send_signal(signal.SIGKILL)
                self._ended.wait()

    def ending(self) -> str:
        """How it has ended, as a part of a sentence."""
        if self.exit_code is None or self.exit_code >= 0:
            return f"ended with exit code {self.exit_code}"
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-self.exit_code).name}"
        return f"was ended by signal {-self.exit_code}"

    def last_words(self) -> str:
        """Its error where it said one, else the end of its log; after a colon."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        errors = [line[len("tessera: ") :] for line in lines if line.startswith("tessera: ")]
        shown = errors or lines[-SHOWN_LINES:]
        return ": " + "\n".join(shown) if shown else ""

    def _send_signal(self, number: signal.Signals) -> None:
        with self._ending:
            if self._process is not None and self.is_running:
                os.kill(self._process.pid, number)

    def _start_and_watch(self) -> None:
        try:
            process = self._start()
        except OSError as error:
            self._error = error
            self._ended.set()
            self._started.set()
            self._announced.set()
            return
        reading = threading.Thread(target=self._read_announcement, args=[process], daemon=True)
        reading.start()
        _wait_and_end_group(process.pid)
        with self._ending:
            self.exit_code = process.wait()
            self._ended.set()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment,
                # Ctrl-C is for this process, which ends the server when it ends itself.
                start_new_session=True,
            )
        self._started.set()
        return self._process

    def _read_announcement(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        try:
            with process.stdout as output:
                line = output.readline()
                if line:
                    self.announcement = json.loads(line)
                self._announced.set()
                # Until the server ends: it may not find its output closed.
                output.read()
        except ValueError as error:
            self._error = error
        finally:
            self._announced.set()


def _ending_with_parent(command: list[str]) -> list[str]:
    """The command that ends with this process, also where nobody is left to end it."""
    if not sys.executable:
        return command
    return [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), *command]


def _wait_and_end_group(process: int) -> None:
    """Waits for the end of a process, and ends what it has started and left behind.

    Its end is not taken notice of yet: until then its number, and that of its group, is its own.
    """
    with contextlib.suppress(ChildProcessError, ProcessLookupError, PermissionError):
        os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
        os.killpg(process, signal.SIGKILL)
