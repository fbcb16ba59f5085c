"""What lies beside a model's file: its exits, its configuration, and the labels of its classes.

These are the files that `tessera serve` finds beside a model. In an archive they are called as the
model is there.
"""

from __future__ import annotations

import re
from pathlib import Path

from tessera_serve.disk_body import NamedFile
from tessera_serve.errors import InvalidRequest

LABEL_FILE = re.compile(r'^[^#\n]*\blabel_filename\s*:\s*"([^"\n]+)"', re.MULTILINE)
MODEL_FILE = re.compile(r'^[^#\n]*\bdefault_model_filename\s*:\s*"([^"\n]+)"', re.MULTILINE)
DEFAULT_MODEL_FILE = "model.onnx"


def files_beside(model: Path, name: str) -> list[NamedFile]:
    """The files beside a model that will be called `name`."""
    found = []
    for ending in (".exits.json", ".labels.txt"):
        path = model.with_name(model.stem + ending)
        if path.is_file():
            found.append(NamedFile(name + ending, path))
    config = _config_of(model)
    if config is not None:
        found.append(NamedFile(f"{name}.config.pbtxt", config))
        found.extend(_label_files(config))
    return found


def path_within(folder: Path, location: str, whose: str) -> Path:
    """The file at a location of a folder, which must not lead out of it."""
    folder = folder.resolve()
    path = (folder / location).resolve()
    if not path.is_relative_to(folder):
        raise InvalidRequest(f'{whose} "{location}" leads out of {folder}, expected a file inside')
    if not path.is_file():
        raise InvalidRequest(f'{whose} "{location}" is not there, expected the file {path}')
    return path


def _config_of(model: Path) -> Path | None:
    """MODEL.config.pbtxt, or config.pbtxt in Triton's layout where it is about this model."""
    own = model.with_name(f"{model.stem}.config.pbtxt")
    if own.is_file():
        return own
    folder = model.resolve().parent
    config = (folder.parent if folder.name.isdigit() else folder) / "config.pbtxt"
    if not config.is_file():
        return None
    named = MODEL_FILE.search(config.read_text())
    is_about = model.name == (named.group(1) if named else DEFAULT_MODEL_FILE)
    return config if is_about else None


def _label_files(config: Path) -> list[NamedFile]:
    names = dict.fromkeys(LABEL_FILE.findall(config.read_text()))
    whose = f"{config}: the file of labels"
    return [NamedFile(name, path_within(config.parent, name, whose)) for name in names]
