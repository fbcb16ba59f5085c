"""What tests share: the models, and a server of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import models
import pytest

import tessera_serve


def pytest_configure() -> None:
    """Without the binary there is nothing to test."""
    if not os.environ.get("TESSERA_BINARY"):
        pytest.exit("TESSERA_BINARY names no binary of tessera: see scripts/test-python", 2)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all small models."""
    folder = tmp_path_factory.mktemp("models")
    models.write_all(folder)
    return folder


@pytest.fixture(scope="session")
def server(model_folder: Path) -> Iterator[tessera_serve.Server]:
    """A server of all small models, which tests share: they leave it as it was."""
    files = sorted(model_folder.glob("*.onnx"))
    with tessera_serve.serve(*files, max_run_time=5, skip_failed=True) as server:
        # rten has not all of the datatypes.
        assert server.engine.startswith("rten") or not server.failed
        yield server


def served_task(server: tessera_serve.Server, name: str) -> tessera_serve.Task:
    """A task; where the engine can't serve it, skips the test out loud."""
    if name in server.failed:
        pytest.skip(f"*** SKIPPED: {server.failed[name]} ***")
    return server[name]
