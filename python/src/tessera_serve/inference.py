"""A request for inference, and the answer to it, as the protocol writes them.

Tensors go as bytes behind the JSON (the protocol's extension for binary data), both ways.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera_serve.errors import InvalidRequest, TesseraError
from tessera_serve.http_call import Buffer, Call, MemoryBody, Reply, path_of
from tessera_serve.metadata import TaskMetadata, TensorMetadata
from tessera_serve.response import Response
from tessera_serve.tensors import Array, array_for_input, array_of_bytes, bytes_of_array

JSON_LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True)
class InferenceOptions:
    """What a caller may say beside the inputs."""

    deadline_ms: float | None = None
    request_id: str | None = None
    outputs: Sequence[str] | None = None
    cast: bool = False


@dataclass(frozen=True)
class InferenceInputs:
    """The inputs as the caller gave them: by position, by name, or both."""

    positional: tuple[object, ...]
    named: Mapping[str, object]


def inference_call(
    metadata: TaskMetadata,
    version: str | None,
    inputs: InferenceInputs,
    options: InferenceOptions,
) -> Call[Response]:
    """The request for inference with these inputs."""
    arrays = _arrays_by_input(metadata, inputs, options.cast)
    buffers = [bytes_of_array(array, tensor.datatype) for tensor, array in arrays]
    headers = [
        _input_header(tensor, array, buffer) for (tensor, array), buffer in zip(arrays, buffers)
    ]
    document = json.dumps(_request_document(headers, options)).encode()
    versions = [] if version is None else ["versions", version]
    return Call(
        method="POST",
        path=path_of("v2", "models", metadata.name, *versions, "infer"),
        headers={
            "Content-Type": "application/octet-stream",
            JSON_LENGTH: str(len(document)),
        },
        body=MemoryBody([document, *buffers]),
        read=read_response,
    )


def read_response(reply: Reply) -> Response:
    """The answer that a reply has."""
    json_length = int(reply.headers.get(JSON_LENGTH.lower(), len(reply.body)))
    document = json.loads(reply.body[:json_length])
    data = memoryview(reply.body)[json_length:]
    outputs: dict[str, Array] = {}
    for output in document["outputs"]:
        size = (output.get("parameters") or {}).get("binary_data_size")
        outputs[output["name"]] = _read_output(output, data[: size or 0], size is not None)
        data = data[size or 0 :]
    parameters = document.get("parameters") or {}
    return Response(
        task=document["model_name"],
        version=document.get("model_version", ""),
        request_id=document.get("id") or None,
        outputs=outputs,
        exits=_exits_by_row(parameters, outputs),
        degraded=bool(parameters.get("degraded", False)),
        degraded_reason=parameters.get("degraded_reason"),
        parameters=parameters,
    )


def _arrays_by_input(
    metadata: TaskMetadata, inputs: InferenceInputs, cast: bool
) -> list[tuple[TensorMetadata, Array]]:
    values = _values_by_name(metadata, inputs)
    known = {tensor.name: tensor for tensor in metadata.inputs}
    for name in values:
        if name not in known:
            expected = ", ".join(map(str, metadata.inputs))
            raise InvalidRequest(
                f'task "{metadata.name}": there is no input "{name}", expected: {expected}'
            )
    try:
        return [
            (known[name], array_for_input(value, known[name], cast=cast))
            for name, value in values.items()
        ]
    except InvalidRequest as error:
        raise InvalidRequest(f'task "{metadata.name}": {error}') from error.__cause__


def _values_by_name(metadata: TaskMetadata, inputs: InferenceInputs) -> dict[str, object]:
    """All inputs by name: those by position are in the order of the task's inputs."""
    positional = inputs.positional
    if len(positional) == 1 and isinstance(positional[0], Mapping):
        return {**positional[0], **inputs.named}
    if len(positional) > len(metadata.inputs):
        expected = ", ".join(map(str, metadata.inputs))
        raise InvalidRequest(
            f'task "{metadata.name}": got {len(positional)} inputs, expected: {expected}'
        )
    names = [tensor.name for tensor in metadata.inputs[: len(positional)]]
    for name in names:
        if name in inputs.named:
            raise InvalidRequest(
                f'task "{metadata.name}": input "{name}" is given by position and by name, '
                "expected one of them"
            )
    return {**dict(zip(names, positional)), **inputs.named}


def _input_header(tensor: TensorMetadata, array: Array, buffer: Buffer) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "datatype": tensor.datatype,
        "shape": list(array.shape),
        "parameters": {"binary_data_size": len(buffer)},
    }


def _request_document(inputs: list[dict[str, Any]], options: InferenceOptions) -> dict[str, Any]:
    parameters: dict[str, Any] = {"binary_data_output": True}
    if options.deadline_ms is not None:
        parameters["timeout"] = _microseconds(options.deadline_ms)
    document: dict[str, Any] = {"inputs": inputs, "parameters": parameters}
    if options.request_id is not None:
        document["id"] = options.request_id
    if options.outputs is not None:
        document["outputs"] = [{"name": name} for name in options.outputs]
    return document


def _microseconds(deadline_ms: float) -> int:
    microseconds = round(deadline_ms * 1000)
    if microseconds < 1:
        raise InvalidRequest(f"deadline_ms is {deadline_ms}, expected more than 0")
    return microseconds


def _read_output(output: Mapping[str, Any], data: memoryview, is_binary: bool) -> Array:
    shape = tuple(int(size) for size in output["shape"])
    if is_binary:
        return array_of_bytes(data, output["datatype"], shape)
    if "data" not in output:
        raise TesseraError(f'output "{output["name"]}" of the answer has no data')
    # Servers without binary tensors; NaN and infinity are strings there, which numpy reads.
    tensor = TensorMetadata(output["name"], output["datatype"], shape)
    return np.asarray(output["data"]).astype(tensor.dtype).reshape(shape)


def _exits_by_row(
    parameters: Mapping[str, Any], outputs: Mapping[str, Array]
) -> tuple[str | None, ...]:
    if "exits" in parameters:
        return tuple(name or None for name in str(parameters["exits"]).split(","))
    first = next(iter(outputs.values()), None)
    rows = first.shape[0] if first is not None and first.ndim > 0 else 1
    return (parameters.get("exit"),) * rows
