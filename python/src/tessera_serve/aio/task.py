"""A task of a server, for asyncio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tessera_serve import control_calls, task_calls
from tessera_serve.control_calls import ExitStatus
from tessera_serve.errors import InvalidRequest
from tessera_serve.inference import InferenceInputs, InferenceOptions, inference_call
from tessera_serve.metadata import TaskMetadata, TensorMetadata
from tessera_serve.response import Response

if TYPE_CHECKING:
    from tessera_serve.aio.client import AsyncClient


class AsyncTask:
    """A task: `await client["cats"](image)`. Takes and gives the same as `tessera_serve.Task`."""

    def __init__(self, client: AsyncClient, name: str, version: str | None = None) -> None:
        self._client = client
        self._name = name
        self._version = version
        self._known: TaskMetadata | None = None

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    async def __call__(
        self,
        *inputs: Any,
        deadline_ms: float | None = None,
        request_id: str | None = None,
        outputs: Sequence[str] | None = None,
        cast: bool = False,
        **named_inputs: Any,
    ) -> Any:
        """The output for these inputs; a dict by name where there are several outputs."""
        response = await self.infer(
            *inputs,
            deadline_ms=deadline_ms,
            request_id=request_id,
            outputs=outputs,
            cast=cast,
            **named_inputs,
        )
        return response.value()

    async def infer(
        self,
        *inputs: Any,
        deadline_ms: float | None = None,
        request_id: str | None = None,
        outputs: Sequence[str] | None = None,
        cast: bool = False,
        **named_inputs: Any,
    ) -> Response:
        """The outputs for these inputs, and how the task came to them."""
        options = InferenceOptions(deadline_ms, request_id, outputs, cast)
        given = InferenceInputs(inputs, named_inputs)
        known = self._known
        try:
            return await self._infer_as(known or await self.metadata(), given, options)
        except InvalidRequest:
            # The task may have changed since it was asked what it takes.
            found = await self.metadata()
            if known is None or known == found:
                raise
            return await self._infer_as(found, given, options)

    async def _infer_as(
        self, metadata: TaskMetadata, inputs: InferenceInputs, options: InferenceOptions
    ) -> Response:
        call = inference_call(metadata, self._version, inputs, options)
        return await self._client.perform(call)

    async def metadata(self) -> TaskMetadata:
        """What it takes and gives, as it is now."""
        call = task_calls.metadata_call(self._name, self._version)
        self._known = await self._client.perform(call)
        return self._known

    async def inputs(self) -> tuple[TensorMetadata, ...]:
        """Its inputs."""
        return (await self.metadata()).inputs

    async def outputs(self) -> tuple[TensorMetadata, ...]:
        """Its outputs."""
        return (await self.metadata()).outputs

    async def statistics(self) -> dict[str, Any]:
        """What it did so far: counts and nanoseconds, in Triton's form."""
        return await self._client.perform(task_calls.statistics_call(self._name, self._version))

    async def config(self) -> dict[str, Any]:
        """Its configuration, in Triton's form."""
        return await self._client.perform(task_calls.config_call(self._name, self._version))

    async def status(self) -> dict[str, Any]:
        """How it is and how it is defined, from the control plane."""
        call = control_calls.task_status_call(self._name)
        status: dict[str, Any] = await self._client.perform(call)
        return status

    async def exits(self) -> dict[str, ExitStatus]:
        """Its exits by name, from the control plane."""
        statuses = await self._client.perform(control_calls.exits_call(self._name))
        return {status.name: status for status in statuses}

    async def set_threshold(self, exit_name: str, threshold: float) -> ExitStatus:
        """Sets the threshold of an exit, for requests from now on."""
        call = control_calls.put_threshold_call(self._name, exit_name, threshold)
        return await self._client.perform(call)

    def __repr__(self) -> str:
        described = self._name if self._known is None else str(self._known)
        return f"<task {described}>"
