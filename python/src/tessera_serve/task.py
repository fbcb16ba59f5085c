"""A task of a server, which is called like a function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tessera_serve import control_calls, task_calls
from tessera_serve.errors import InvalidRequest
from tessera_serve.exits import Exits
from tessera_serve.inference import InferenceInputs, InferenceOptions, inference_call
from tessera_serve.metadata import TaskMetadata, TensorMetadata
from tessera_serve.response import Response

if TYPE_CHECKING:
    from tessera_serve.client import Client


class Task:
    """A task: `client["cats"](image)`.

    Threads may share it. What the task takes is asked for once, and again when it has changed.
    """

    def __init__(self, client: Client, name: str, version: str | None = None) -> None:
        self._client = client
        self._name = name
        self._version = version
        self._known: TaskMetadata | None = None

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    def __call__(
        self,
        *inputs: Any,
        deadline_ms: float | None = None,
        request_id: str | None = None,
        outputs: Sequence[str] | None = None,
        cast: bool = False,
        **named_inputs: Any,
    ) -> Any:
        """The output for these inputs; a dict by name where there are several outputs.

        Takes the same as `infer`.
        """
        response = self.infer(
            *inputs,
            deadline_ms=deadline_ms,
            request_id=request_id,
            outputs=outputs,
            cast=cast,
            **named_inputs,
        )
        return response.value()

    def infer(
        self,
        *inputs: Any,
        deadline_ms: float | None = None,
        request_id: str | None = None,
        outputs: Sequence[str] | None = None,
        cast: bool = False,
        **named_inputs: Any,
    ) -> Response:
        """The outputs for these inputs, and how the task came to them.

        Inputs are arrays in the order of `task.inputs`, or by name, or one dict of names and
        arrays. An array has the dtype of its input, or one that fits into it. `cast` allows that
        numbers are rounded, as from float64 to float32. Numbers, strings and lists become what the
        input takes.

        `deadline_ms`: milliseconds after which the answer is of no use; the server refuses what it
        can't finish in time. `request_id`: a name for the request, in events and logs. `outputs`:
        the names of those that are wanted.
        """
        options = InferenceOptions(deadline_ms, request_id, outputs, cast)
        given = InferenceInputs(inputs, named_inputs)
        known = self._known
        try:
            return self._infer_as(known or self.metadata, given, options)
        except InvalidRequest:
            # The task may have changed since it was asked what it takes.
            found = self.metadata
            if known is None or known == found:
                raise
            return self._infer_as(found, given, options)

    def _infer_as(
        self, metadata: TaskMetadata, inputs: InferenceInputs, options: InferenceOptions
    ) -> Response:
        return self._client.perform(inference_call(metadata, self._version, inputs, options))

    @property
    def metadata(self) -> TaskMetadata:
        """What it takes and gives, as it is now."""
        self._known = self._client.perform(task_calls.metadata_call(self._name, self._version))
        return self._known

    @property
    def inputs(self) -> tuple[TensorMetadata, ...]:
        """Its inputs."""
        return self.metadata.inputs

    @property
    def outputs(self) -> tuple[TensorMetadata, ...]:
        """Its outputs."""
        return self.metadata.outputs

    def statistics(self) -> dict[str, Any]:
        """What it did so far: counts and nanoseconds, in Triton's form."""
        return self._client.perform(task_calls.statistics_call(self._name, self._version))

    def config(self) -> dict[str, Any]:
        """Its configuration, in Triton's form."""
        return self._client.perform(task_calls.config_call(self._name, self._version))

    def status(self) -> dict[str, Any]:
        """How it is and how it is defined, from the control plane."""
        status: dict[str, Any] = self._client.perform(control_calls.task_status_call(self._name))
        return status

    @property
    def exits(self) -> Exits:
        """Its exits by name, from the control plane: `task.exits["early"].threshold = 0.3`."""
        statuses = self._client.perform(control_calls.exits_call(self._name))
        return Exits(statuses, self.set_threshold)

    def set_threshold(self, exit_name: str, threshold: float) -> control_calls.ExitStatus:
        """Sets the threshold of an exit, for requests from now on."""
        call = control_calls.put_threshold_call(self._name, exit_name, threshold)
        return self._client.perform(call)

    def __repr__(self) -> str:
        described = self._name if self._known is None else str(self._known)
        return f"<task {described}>"
