"""The `tessera` binary: where it is, and the environment that it is started with."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tessera_serve.errors import BinaryNotFound
from tessera_serve.onnxruntime_library import find_library

NAME = "tessera.exe" if os.name == "nt" else "tessera"
PACKAGE_FOLDER = Path(__file__).resolve().parent
# The variables that name the binary, and the library of ONNX Runtime.
BINARY_VARIABLE = "TESSERA_BINARY"
LIBRARY_VARIABLE = "ORT_DYLIB_PATH"


def find_binary(path: str | os.PathLike[str] | None = None) -> Path:
    """The binary: `path`, what TESSERA_BINARY names, of this environment, or of PATH."""
    named = os.fspath(path) if path is not None else os.environ.get(BINARY_VARIABLE)
    if named:
        if not _can_be_run(Path(named)):
            raise BinaryNotFound(f"{named} can't be run, expected the binary of tessera")
        return Path(named).absolute()
    folders = list(dict.fromkeys(_folders()))
    for folder in folders:
        if _can_be_run(folder / NAME):
            return folder / NAME
    in_path = shutil.which(NAME)
    if in_path is not None:
        return Path(in_path)
    looked = ", ".join(map(str, folders))
    raise BinaryNotFound(
        f"there is no {NAME} in {looked}, nor in PATH: "
        f"install tessera-serve as a wheel, or set {BINARY_VARIABLE}"
    )


def binary_environment() -> dict[str, str]:
    """This process's environment, with the library of ONNX Runtime where none is named."""
    environment = dict(os.environ)
    if not environment.get(LIBRARY_VARIABLE):
        library = find_library()
        if library is not None:
            environment[LIBRARY_VARIABLE] = str(library)
    return environment


def _folders() -> Iterator[Path]:
    """Where installers put the scripts of a package, that of this very package first."""
    # Where a wheel brings libraries of its own, the binary is beside the package.
    yield PACKAGE_FOLDER.parent / "tessera_serve.scripts"
    # pip install --target
    yield PACKAGE_FOLDER.parent / "bin"
    yield Path(sys.executable).parent
    yield Path(sysconfig.get_path("scripts"))
    # pip install --user
    yield Path(sysconfig.get_path("scripts", _user_scheme()))


def _user_scheme() -> str:
    return "nt_user" if os.name == "nt" else "posix_user"


def _can_be_run(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
