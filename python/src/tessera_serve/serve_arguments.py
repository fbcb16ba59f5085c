"""The arguments of `tessera serve`, from those of Python."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Union

from tessera_serve.errors import InvalidRequest

ModelFile = Union[str, "os.PathLike[str]"]
Models = Union[ModelFile, Mapping[str, ModelFile]]

PORTS = ("http", "grpc", "metrics", "control")
# Flags that have a parameter of their own.
TAKEN = {"repo": "repository", "json": "nothing: it is always on"}


def serve_arguments(
    models: tuple[Models, ...], repository: Path, flags: Mapping[str, Any]
) -> list[str]:
    """All arguments, with any free ports where none are named."""
    for name, instead in TAKEN.items():
        if name in flags:
            raise InvalidRequest(f"{name} is no option here, expected {instead}")
    arguments = ["serve", "--json", "--repo", str(repository)]
    for name, value in {**dict.fromkeys(PORTS, 0), **flags}.items():
        arguments.extend(_flag(name, value))
    return [*arguments, "--", *_files(models)]


def _flag(name: str, value: Any) -> Iterator[str]:
    """`host_memory="2GB"` is `--host-memory 2GB`. A list repeats the flag, True has no value."""
    flag = "--" + name.replace("_", "-")
    if value is None or value is False:
        return
    if value is True:
        yield flag
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from (flag, f"{key}={_text(entry)}")
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from (flag, _text(entry))
    else:
        yield from (flag, _text(value))


def _text(value: Any) -> str:
    """A value; the sizes of a shape have commas between them."""
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _files(models: tuple[Models, ...]) -> Iterator[str]:
    for model in models:
        if isinstance(model, Mapping):
            yield from (f"{name}={_path(file)}" for name, file in model.items())
        else:
            path = _path(model)
            # What is before the first = would be taken for the task's name.
            is_file_with_sign = "=" in path and Path(path).is_file()
            yield f"{Path(path).stem}={path}" if is_file_with_sign else path


def _path(file: ModelFile) -> str:
    return os.path.expanduser(os.fspath(file))
