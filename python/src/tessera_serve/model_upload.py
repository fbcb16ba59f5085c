"""A model and what lies beside it, on their way into a server's repository."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tessera_serve.beside_model import files_beside, path_within
from tessera_serve.control_calls import put_model_call
from tessera_serve.disk_body import FileBody, NamedFile, TarBody
from tessera_serve.errors import InvalidRequest
from tessera_serve.external_data import external_locations
from tessera_serve.http_call import Call


def model_upload_call(name: str, path: str | os.PathLike[str], *, is_dry_run: bool) -> Call[Any]:
    """The request that puts a model into the repository.

    A model alone goes as it is; one with files beside it goes with them in an archive.
    """
    model = Path(path).expanduser()
    if not model.is_file():
        raise InvalidRequest(f"{model}: expected the file of an ONNX model")
    others = files_beside(model, name) + _external_data(model)
    if not others:
        return put_model_call(name, "application/octet-stream", FileBody(model), is_dry_run)
    archive = TarBody([NamedFile(f"{name}.onnx", model), *others])
    return put_model_call(name, "application/x-tar", archive, is_dry_run)


def _external_data(model: Path) -> list[NamedFile]:
    """The files that its weights are in; each once, and without detours in its name."""
    whose = f"{model}: external data"
    found: dict[str, NamedFile] = {}
    for location in external_locations(model):
        name = os.path.normpath(location)
        found[name] = NamedFile(name, path_within(model.parent, location, whose))
    return list(found.values())
