"""The package needs Python and numpy, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tessera_serve

SOURCES = Path(tessera_serve.__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCES)}
PROGRAM = """
import sys
from importlib.abc import MetaPathFinder

ALLOWED = {*sys.stdlib_module_names, "numpy", "tessera_serve"}


class Guard(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] not in ALLOWED:
            raise ImportError(f"{name} is imported")


import numpy
sys.meta_path.insert(0, Guard())
import tessera_serve, tessera_serve.aio, tessera_serve.placement
"""


@pytest.mark.skipif(sys.version_info < (3, 10), reason="needs sys.stdlib_module_names")
def test_nothing_but_numpy_is_imported() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], env=ENVIRONMENT, check=True)


def test_importing_starts_nothing_slow() -> None:
    shown = "import sys, tessera_serve; print({'onnx', 'torch', 'onnxruntime'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", shown],
        env=ENVIRONMENT,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "set()"
