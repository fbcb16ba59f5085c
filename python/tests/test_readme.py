"""The README says what is so: its snippets run, and print what it says."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tessera_serve
from tessera_serve.binary import find_binary

README = Path(__file__).parents[1] / "README.md"
SNIPPET = re.compile(r"(?:<!-- needs: (\w+) -->\n)?```(\w+)\n(.*?)```", re.DOTALL)
PRINTED = re.compile(r"^ *print\(.*\)  # (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Snippet:
    """A piece of the README, in a language, and what it needs that may not be there."""

    needs: str
    language: str
    text: str


def snippets() -> list[Snippet]:
    """All of them, in order."""
    return [Snippet(*found) for found in SNIPPET.findall(README.read_text())]


def can_be_run(snippet: Snippet, server: tessera_serve.Server) -> bool:
    """Whether there is what it needs; says so out loud where there is not."""
    if snippet.needs == "torch" and importlib.util.find_spec("torch") is None:
        print("*** SKIPPED: the snippet with torch, which is not installed ***")
        return False
    if snippet.needs == "uploads":
        try:
            server.put_model("dogs", "dogs.onnx", dry_run=True)
        except tessera_serve.NotFound:
            print("*** SKIPPED: the snippet with put_model, as the server takes no models ***")
            return False
    return True


def run_shell(text: str, folder: Path) -> None:
    """Runs commands, among which is `tessera`."""
    environment = {**os.environ, "PATH": f"{folder}/bin{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(["sh", "-ec", text], check=True, env=environment, stdout=subprocess.DEVNULL)


def run_python(text: str, names: dict[str, Any]) -> None:
    """Runs a snippet, and compares what it prints where the README says it."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(text, str(README), "exec"), names)  # noqa: S102 (our own README)
    expected = PRINTED.findall(text)
    printed = output.getvalue().splitlines()
    assert not expected or printed == expected


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_snippet_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tessera").symlink_to(find_binary())
    names: dict[str, Any] = {}
    for snippet in snippets():
        if snippet.language == "sh":
            run_shell(snippet.text, tmp_path)
        elif snippet.language == "python":
            server = names.get("server")
            with capsys.disabled():
                runs = server is None or can_be_run(snippet, server)
            if runs:
                run_python(snippet.text, names)
    for name in ("server", "shared", "client"):
        names[name].close()


def test_only_installing_is_not_run() -> None:
    text = [snippet.text for snippet in snippets() if snippet.language not in ("sh", "python")]
    assert all(line.startswith("pip install") for each in text for line in each.splitlines())


def test_no_line_is_too_long() -> None:
    lines = README.read_text().splitlines()
    assert [line for line in lines if len(line) > 100] == []
