"""How a model of PyTorch is traced: with its exits as outputs, and with open dimensions."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable

import torch

from tessera_serve.errors import ExportFailed

BATCH = "batch"


@dataclass(frozen=True)
class ExportRequest:
    """What is to be exported, and what things are called."""

    model: Any
    inputs: tuple[Any, ...]
    exits: Mapping[str, Any]
    input_names: Sequence[str] | None
    output_names: Sequence[str] | None
    open_dimensions: Mapping[str, Mapping[int, str]] | None
    opset: int


def traced_program(request: ExportRequest) -> Any:
    """The model as an ONNX program of PyTorch: first its own outputs, then those of exits."""
    names = list(request.input_names or _parameters_of(request.model, len(request.inputs)))
    if len(names) != len(request.inputs):
        raise ExportFailed(
            f"input_names has {len(names)} names, expected one for each of "
            f"{len(request.inputs)} example inputs"
        )
    dimensions = _open_dimensions(request, names)
    inputs = _without_sizes_of_one(request.inputs, names, dimensions)
    modes = {module: module.training for module in request.model.modules()}
    traced = _ModelWithExits(request.model, request.exits)
    traced.eval()
    try:
        with torch.no_grad():
            own_outputs = traced.own_output_names(inputs, request.output_names)
            return torch.onnx.export(
                traced,
                inputs,
                input_names=names,
                output_names=[*own_outputs, *request.exits],
                dynamic_shapes=(_shapes(names, dimensions),),
                opset_version=request.opset,
                dynamo=True,
                verbose=False,
            )
    finally:
        traced.remove_hooks()
        for module, is_training in modes.items():
            module.training = is_training


def check_exits(graph: Any, exits: Sequence[str]) -> None:
    """Refuses exits that a server would refuse."""
    if not exits:
        return
    outputs = {output.name: output.type.tensor_type for output in graph.output}
    own = [name for name in outputs if name not in exits]
    if len(own) != 1:
        raise ExportFailed(
            f"the model has the outputs {', '.join(own)} beside its exits, expected one"
        )
    used = {name for node in graph.node for name in node.input}
    for name in exits:
        if name in used:
            raise ExportFailed(
                f'exit "{name}": the rest of the model uses its scores, '
                "expected a branch of its own"
            )
        if _described(outputs[name]) != _described(outputs[own[0]]):
            raise ExportFailed(
                f'exit "{name}" gives {_described(outputs[name])}, expected '
                f'{_described(outputs[own[0]])} as the output "{own[0]}"'
            )


class _ModelWithExits(torch.nn.Module):
    """A model that gives the scores of its exits as well."""

    def __init__(self, model: Any, exits: Mapping[str, Any]) -> None:
        super().__init__()
        self.model: Any = model
        modules = dict(model.named_modules())
        # What a trace may not see as a part of the module.
        scores: dict[str, Any] = {}
        self._scores_of_hooks: Callable[[], dict[str, Any]] = lambda: scores
        self._hooks: list[Any] = []
        # By exit, the key of the output that it is.
        self._outputs: dict[str, str | int] = {}
        for name, source in exits.items():
            module = modules.get(source) if isinstance(source, str) else source
            if isinstance(module, torch.nn.Module):
                hook = module.register_forward_hook(_keep_output(scores, name))
                self._hooks.append(hook)
            else:
                self._outputs[name] = source
        self._names = list(exits)

    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        """The model's own outputs, and the scores of exits."""
        own, scores = self._run(inputs)
        return (*own.values(), *(scores[name] for name in self._names))

    def own_output_names(self, inputs: tuple[Any, ...], names: Sequence[str] | None) -> list[str]:
        """The names of the model's own outputs."""
        own, scores = self._run(inputs)
        for exit_name, found in scores.items():
            if not isinstance(found, torch.Tensor):
                raise ExportFailed(
                    f'exit "{exit_name}" gives {type(found).__name__}, expected a tensor'
                )
            if any(found is output for output in own.values()):
                raise ExportFailed(
                    f'exit "{exit_name}" is the output of the whole model, '
                    "expected a branch of its own"
                )
        if names is not None and len(names) != len(own):
            raise ExportFailed(
                f"output_names has {len(names)} names, expected one for each of {len(own)} outputs"
            )
        chosen = list(names or own)
        doubled = [name for name in chosen if name in scores]
        if doubled:
            raise ExportFailed(f'"{doubled[0]}" is an exit and an output, expected two names')
        return chosen

    def remove_hooks(self) -> None:
        """Leaves the model as it was."""
        for hook in self._hooks:
            hook.remove()

    def _run(self, inputs: tuple[Any, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The model's own outputs by their names, and the scores of exits by theirs."""
        scores = self._scores_of_hooks()
        scores.clear()
        own = _outputs_by_key(self.model(*inputs))
        for name, key in self._outputs.items():
            if key not in own:
                raise ExportFailed(
                    f'exit "{name}": {key!r} is neither a module nor an output of the model, '
                    f"expected one of the outputs {', '.join(map(repr, own))}"
                )
            scores[name] = own.pop(key)
        for name in self._names:
            if name not in scores:
                raise ExportFailed(f'exit "{name}": the model did not run its module')
        return _by_name(own), scores


def _keep_output(scores: dict[str, Any], name: str) -> Any:
    def keep(module: Any, inputs: Any, output: Any) -> None:
        scores[name] = output

    return keep


def _outputs_by_key(result: Any) -> dict[str | int, Any]:
    """What a model gives: by its keys where it is a dict, else by numbers."""
    if isinstance(result, torch.Tensor):
        return {0: result}
    if isinstance(result, Mapping):
        return dict(result)
    if isinstance(result, (list, tuple)):
        return dict(enumerate(result))
    raise ExportFailed(
        f"the model gives {type(result).__name__}, expected a tensor, a tuple or a dict"
    )


def _by_name(outputs: Mapping[str | int, Any]) -> dict[str, Any]:
    """Outputs by names: their keys, or `output` for one alone, else `output_0` and so on."""
    is_alone = len(outputs) == 1
    return {
        key if isinstance(key, str) else "output" if is_alone else f"output_{key}": output
        for key, output in outputs.items()
    }


def _parameters_of(model: Any, count: int) -> list[str]:
    parameters = inspect.signature(model.forward).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind in kinds]
    if len(names) < count:
        return [f"input_{number}" for number in range(count)]
    return names[:count]


def _open_dimensions(request: ExportRequest, names: Sequence[str]) -> dict[str, dict[int, str]]:
    if request.open_dimensions is None:
        with_rows = [name for name, x in zip(names, request.inputs) if x.dim() > 0]
        return {name: {0: BATCH} for name in with_rows}
    unknown = [name for name in request.open_dimensions if name not in names]
    if unknown:
        raise ExportFailed(
            f'open_dimensions: there is no input "{unknown[0]}", expected {", ".join(names)}'
        )
    return {name: dict(axes) for name, axes in request.open_dimensions.items()}


def _without_sizes_of_one(
    inputs: tuple[Any, ...], names: Sequence[str], dimensions: Mapping[str, Mapping[int, str]]
) -> tuple[Any, ...]:
    """Examples in which what is open is not 1, which a trace would take for fixed."""
    doubled = []
    for name, example in zip(names, inputs):
        for axis in dimensions.get(name, {}):
            if example.shape[axis] == 1:
                example = torch.cat([example, example], axis)
        doubled.append(example)
    return tuple(doubled)


def _shapes(
    names: Sequence[str], dimensions: Mapping[str, Mapping[int, str]]
) -> tuple[dict[int, Any] | None, ...]:
    """The open dimensions as a trace takes them; those of one name are of one size."""
    symbols: dict[str, Any] = {}
    return tuple(
        {
            axis: symbols.setdefault(symbol, torch.export.Dim(symbol))
            for axis, symbol in dimensions[name].items()
        }
        if name in dimensions
        else None
        for name in names
    )


def _described(tensor: Any) -> str:
    """Dtype and shape of an output, to compare and to show."""
    sizes = [dim.dim_param or str(dim.dim_value) for dim in tensor.shape.dim]
    return f"elements of type {tensor.elem_type} in [{', '.join(sizes)}]"
