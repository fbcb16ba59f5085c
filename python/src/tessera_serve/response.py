"""What a task answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from tessera_serve.errors import NotFound, TesseraError


@dataclass(frozen=True)
class Response:
    """The outputs of a task, and what the server says of how it came to them."""

    task: str
    version: str
    request_id: str | None
    outputs: Mapping[str, npt.NDArray[Any]]
    """The arrays, by the names of the outputs."""
    exits: tuple[str | None, ...] = ()
    """Per row, the exit that it left at; None where it went on to the end."""
    degraded: bool = False
    """Whether an exit answered that was not certain enough, as the rest failed or was too slow."""
    degraded_reason: str | None = None
    """Why."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """All that the server says beside the outputs."""

    @property
    def exit(self) -> str | None:
        """The exit that all rows left at; None where there is no such exit."""
        names = set(self.exits)
        return names.pop() if len(names) == 1 else None

    @property
    def output(self) -> npt.NDArray[Any]:
        """The output, where there is one."""
        if len(self.outputs) != 1:
            names = ", ".join(self.outputs)
            raise TesseraError(
                f'task "{self.task}" has the outputs {names}: expected response["NAME"]'
            )
        return next(iter(self.outputs.values()))

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """The output with this name."""
        if name not in self.outputs:
            names = ", ".join(self.outputs)
            raise NotFound(f'there is no output "{name}", expected one of: {names}')
        return self.outputs[name]

    def value(self) -> npt.NDArray[Any] | dict[str, npt.NDArray[Any]]:
        """The output where there is one, else all of them by their names."""
        return self.output if len(self.outputs) == 1 else dict(self.outputs)
