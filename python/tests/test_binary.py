"""The binary is found wherever installers put it, and runs as a module."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import tessera_serve
from tessera_serve import BinaryNotFound, binary, onnxruntime_library
from tessera_serve.binary import BINARY_VARIABLE, LIBRARY_VARIABLE, find_binary

SOURCES = Path(tessera_serve.__file__).parents[1]


def make_binary(folder: Path) -> Path:
    """A file that can be run."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / binary.NAME
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a binary; the package is in a folder of it."""
    package = tmp_path / "target" / "tessera_serve"
    monkeypatch.setattr(binary, "PACKAGE_FOLDER", package)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "environment" / "bin" / "python"))
    monkeypatch.setattr("sysconfig.get_path", lambda *_: str(tmp_path / "scripts"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.delenv(BINARY_VARIABLE)
    return tmp_path


@pytest.mark.parametrize(
    "folder",
    ["target/bin", "target/tessera_serve.scripts", "environment/bin", "scripts", "path"],
)
def test_the_binary_is_found(nowhere: Path, folder: str) -> None:
    expected = make_binary(nowhere / folder)
    assert find_binary() == expected


def test_the_binary_of_the_package_comes_first(nowhere: Path) -> None:
    make_binary(nowhere / "path")
    make_binary(nowhere / "environment" / "bin")
    expected = make_binary(nowhere / "target" / "bin")
    assert find_binary() == expected


def test_the_binary_may_be_named(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_binary(nowhere / "path")
    named = make_binary(nowhere / "own")
    assert find_binary(named) == named
    monkeypatch.setenv(BINARY_VARIABLE, str(named))
    assert find_binary() == named
    monkeypatch.setenv(BINARY_VARIABLE, str(nowhere))
    with pytest.raises(BinaryNotFound, match="can't be run"):
        find_binary()


def test_where_there_is_no_binary_it_says_where_it_looked(nowhere: Path) -> None:
    with pytest.raises(BinaryNotFound, match=f"{nowhere}/target/bin.*set {BINARY_VARIABLE}"):
        find_binary()


def test_the_package_runs_the_binary() -> None:
    command = [sys.executable, "-m", "tessera_serve"]
    environment = {**binary.binary_environment(), "PYTHONPATH": str(SOURCES)}
    for arguments, exit_code in ((["--version"], 0), (["--nonsense"], 1)):
        expected = subprocess.run([find_binary(), *arguments], capture_output=True, check=False)
        done = subprocess.run(
            [*command, *arguments], env=environment, capture_output=True, check=False
        )
        assert done.returncode == expected.returncode == exit_code
        assert (done.stdout, done.stderr) == (expected.stdout, expected.stderr)


class Package(metadata.Distribution):
    """A package that was installed into a folder."""

    def __init__(self, folder: Path, size: int) -> None:
        self._folder = folder
        self._record = f"onnxruntime/capi/libonnxruntime.so.1.31.1,,{size}\n"

    def read_text(self, filename: str) -> str | None:
        """The list of its files."""
        return self._record if filename == "RECORD" else None

    def locate_file(self, path: object) -> Path:
        """Where a file of it is."""
        return self._folder / str(path)


def install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, packages: dict[str, int], content: bytes
) -> Path:
    """Installs packages of ONNX Runtime, of which the last has written the library."""
    library = folder / "onnxruntime" / "capi" / "libonnxruntime.so.1.31.1"
    library.parent.mkdir(parents=True)
    library.write_bytes(content)

    def distribution(name: str) -> Package:
        if name not in packages:
            raise metadata.PackageNotFoundError(name)
        return Package(folder, packages[name])

    monkeypatch.setattr(metadata, "distribution", distribution)
    monkeypatch.delenv(LIBRARY_VARIABLE, raising=False)
    return library


def test_the_library_of_onnxruntime_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = install(tmp_path, monkeypatch, {"onnxruntime": 3}, b"cpu")
    assert onnxruntime_library.find_library() == library
    assert binary.binary_environment()[LIBRARY_VARIABLE] == str(library)
    monkeypatch.setenv(LIBRARY_VARIABLE, "another")
    assert binary.binary_environment()[LIBRARY_VARIABLE] == "another"


def test_without_onnxruntime_there_is_no_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, {}, b"")
    assert onnxruntime_library.find_library() is None
    assert LIBRARY_VARIABLE not in binary.binary_environment()


def test_a_library_for_gpus_that_was_written_over_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = {"onnxruntime": 3, "onnxruntime-gpu": 8}
    library = install(tmp_path, monkeypatch, both, b"cpu")
    with pytest.warns(RuntimeWarning, match="pip install --force-reinstall --no-deps"):
        assert onnxruntime_library.find_library() == library
    library.write_bytes(b"for gpus")
    assert onnxruntime_library.find_library() == library
