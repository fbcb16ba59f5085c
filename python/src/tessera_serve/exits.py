"""The exits of a task, to look at and to change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Callable

from tessera_serve.control_calls import ExitStatus
from tessera_serve.errors import NotFound

SetThreshold = Callable[[str, float], ExitStatus]


class Exit:
    """An exit of a task. To set its `threshold` changes it at the server, at once.

    A row leaves where the normalised entropy of its scores is at most the threshold: at 0 hardly
    any does, at 1 all do.
    """

    def __init__(self, status: ExitStatus, set_threshold: SetThreshold) -> None:
        self._status = status
        self._set_threshold = set_threshold

    @property
    def name(self) -> str:
        """Its name."""
        return self._status.name

    @property
    def taken(self) -> int:
        """How many rows had left there when it was asked for."""
        return self._status.taken

    @property
    def threshold(self) -> float:
        """The threshold, as it was when it was asked for or set."""
        return self._status.threshold

    @threshold.setter
    def threshold(self, threshold: float) -> None:
        self._status = self._set_threshold(self.name, threshold)

    def __repr__(self) -> str:
        return f"Exit({self.name!r}, threshold={self.threshold:g}, taken={self.taken})"


class Exits(Mapping[str, Exit]):
    """The exits of a task by their names, as they were when they were asked for."""

    def __init__(self, statuses: list[ExitStatus], set_threshold: SetThreshold) -> None:
        self._exits = {status.name: Exit(status, set_threshold) for status in statuses}

    def __getitem__(self, name: str) -> Exit:
        if name not in self._exits:
            names = ", ".join(self._exits) or "none"
            raise NotFound(f'there is no exit "{name}", expected one of: {names}')
        return self._exits[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._exits)

    def __len__(self) -> int:
        return len(self._exits)

    def __repr__(self) -> str:
        return repr(self._exits)
