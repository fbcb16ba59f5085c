"""Models of PyTorch as ONNX files with exits: `export` writes what `serve` takes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from tessera_serve.errors import ExportFailed
from tessera_serve.exit_manifest import manifest_path, thresholds_of, write_manifest

if TYPE_CHECKING:
    import torch

# Where the scores of an exit come from: a module of the model, its dotted name, or one of the
# model's outputs by its number or, where the model gives a dict, its key.
ExitSource = Union["torch.nn.Module", str, int]

# Weights beyond this do not fit into a file of protobuf, which is 2 GB at most.
MOST_BYTES_INSIDE = 1_500_000_000


def export(
    model: torch.nn.Module,
    example_inputs: torch.Tensor | Sequence[torch.Tensor],
    path: str | os.PathLike[str],
    *,
    exits: Mapping[str, ExitSource] | None = None,
    thresholds: float | Mapping[str, float] = 0.5,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    open_dimensions: Mapping[str, Mapping[int, str]] | None = None,
    opset: int = 18,
) -> Path:
    """Writes a model as an ONNX file, and its exits beside it. Says where the file is.

    `exits` are outputs by which a request may leave early: `{"early": model.early_head}`. Each is
    a classifier on a branch of its own, with scores of the same shape as the model's one output.
    It is taken where the normalised entropy of the scores is at most its threshold, from 0 to 1.

    Without names, inputs are called as the parameters of `forward`, and an output is called
    `output`. The first dimension of every input is open, as the batch, unless `open_dimensions`
    says others: `{"tokens": {0: "batch", 1: "length"}}`. What is open may not be 0 in the example.
    """
    from tessera_serve import torch_export

    file = Path(path).expanduser()
    if file.suffix != ".onnx":
        raise ExportFailed(f"{file}: expected a file that ends in .onnx")
    exits = exits or {}
    found = thresholds_of(exits, thresholds)
    request = torch_export.ExportRequest(
        model=model,
        inputs=_as_tuple(example_inputs),
        exits=exits,
        input_names=input_names,
        output_names=output_names,
        open_dimensions=open_dimensions,
        opset=opset,
    )
    program = torch_export.traced_program(request)
    torch_export.check_exits(program.model_proto.graph, list(exits))
    weights = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    program.save(str(file), external_data=weights > MOST_BYTES_INSIDE)
    if exits:
        write_manifest(file, found)
    else:
        # One that was written for another model would be read with this one.
        manifest_path(file).unlink(missing_ok=True)
    return file


def _as_tuple(inputs: Any) -> tuple[Any, ...]:
    return tuple(inputs) if isinstance(inputs, (list, tuple)) else (inputs,)
