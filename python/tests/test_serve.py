"""A server of one's own: how it starts, and that nothing is left of it."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

import tessera_serve
from tessera_serve import InvalidRequest, ServerLost, StartFailed, serve

X = np.ones([1, 2], np.float32)
SOURCES = Path(tessera_serve.__file__).parents[1]


@pytest.fixture
def model(model_folder: Path) -> Path:
    """A model that is served soon."""
    return model_folder / "identity_fp32.onnx"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that temporary folders are made in."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def is_gone(process: int) -> bool:
    """Whether a process ends within some seconds, and nothing is left of it that is ours."""
    for _ in range(200):
        state, parent = _state(process)
        if state == "gone" or (state == "Z" and parent != os.getpid()):
            return True
        time.sleep(0.05)
    return False


def _state(process: int) -> tuple[str, int]:
    """The state of a process, as the kernel writes it, and its parent."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return "gone", 0
    return fields[0], int(fields[1])


def test_a_server_starts_answers_and_ends(model: Path, temporary: Path) -> None:
    with serve(model) as server:
        assert list(server) == ["identity_fp32"]
        np.testing.assert_array_equal(server["identity_fp32"](X), X)
        assert server.is_ready() and server.is_running
        assert server.engine.split()[0] in ("onnxruntime", "rten")
        assert server.metrics_url.startswith("http://127.0.0.1:")
        assert server.grpc_address.startswith("127.0.0.1:")
        assert "up" in server.log()
        assert repr(server) == f"<tessera server at {server.url}, process {server.process_id}>"
        assert len(list(temporary.iterdir())) == 1
    assert is_gone(server.process_id)
    assert list(temporary.iterdir()) == []
    assert not server.is_running
    assert server.log() == ""
    assert "ended with exit code 0" in repr(server)
    with pytest.raises(ServerLost, match="the server was closed"):
        server["identity_fp32"](X)
    server.close()


def test_models_have_the_names_that_they_are_given(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "rate=0.1"
    folder.mkdir()
    shutil.copy(model, folder / "tuned.onnx")
    shutil.copy(model, tmp_path / "-odd.onnx")
    monkeypatch.chdir(tmp_path)
    with serve({"a": model, "b b": model}, folder / "tuned.onnx", "-odd.onnx") as server:
        assert sorted(server) == ["-odd", "a", "b b", "tuned"]
        np.testing.assert_array_equal(server["b b"](X), X)


def test_flags_are_those_of_tessera_serve(model: Path, tmp_path: Path) -> None:
    repository = tmp_path / "kept"
    with serve(model, repository=repository, engine="rten", no_batching=True, cores=1) as server:
        assert server.engine.startswith("rten")
    assert (repository / "serve").is_dir()
    with pytest.raises(StartFailed, match="'--nonsense'"):
        serve(model, nonsense=1)
    with pytest.raises(InvalidRequest, match="expected repository"):
        serve(model, repo=tmp_path)


def test_shapes_and_lists_are_flags_too(model: Path) -> None:
    with serve(model, shape={"x": [1, 2]}, allow_host=["a.example", "b.example"]) as server:
        assert server["identity_fp32"].inputs[0].shape == (1, 2)


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"this is no model", "not an ONNX model"), (None, "No such file")],
)
def test_a_server_that_does_not_start_says_why(
    temporary: Path, tmp_path_factory: pytest.TempPathFactory, content: bytes | None, expected: str
) -> None:
    broken = tmp_path_factory.mktemp("broken") / "broken.onnx"
    if content is not None:
        broken.write_bytes(content)
    with pytest.raises(StartFailed, match=f"ended with exit code 1: .*{expected}"):
        serve(broken)
    assert list(temporary.iterdir()) == []


def test_a_model_that_can_not_be_served_is_an_error_unless_skipped(
    model: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"this is no model")
    with pytest.raises(StartFailed, match="broken: .*not an ONNX model.*skip_failed=True"):
        serve(model, broken)
    with serve(model, broken, skip_failed=True) as server:
        assert list(server) == ["identity_fp32"]
        assert "not an ONNX model" in server.failed["broken"]


def test_a_binary_that_is_none_is_told(model: Path, tmp_path: Path) -> None:
    with pytest.raises(tessera_serve.BinaryNotFound, match="nowhere/tessera can't be run"):
        serve(model, binary="nowhere/tessera")
    script = tmp_path / "tessera"
    script.write_text("no program")
    script.chmod(0o755)
    with pytest.raises(StartFailed, match="Exec format error"):
        serve(model, binary=script)


def test_a_server_that_takes_too_long_is_ended(model: Path, temporary: Path) -> None:
    slow = temporary.parent / "slow-tessera"
    slow.write_text("#!/bin/sh\nsleep 60\n")
    slow.chmod(0o755)
    began = time.monotonic()
    with pytest.raises(StartFailed, match="not ready after 0.5 s"):
        serve(model, binary=slow, start_seconds=0.5, stop_seconds=0.0)
    assert time.monotonic() - began < 20
    assert list(temporary.iterdir()) == []


def test_a_server_that_nothing_refers_to_ends(model: Path) -> None:
    server = serve(model)
    process, task = server.process_id, server["identity_fp32"]
    del server
    gc.collect()
    np.testing.assert_array_equal(task(X), X)
    del task
    gc.collect()
    assert is_gone(process)


def test_a_server_that_died_is_told_of(model: Path) -> None:
    with serve(model) as server:
        os.kill(server.process_id, signal.SIGKILL)
        assert is_gone(server.process_id)
        with pytest.raises(ServerLost, match="the server was ended by SIGKILL"):
            server["identity_fp32"](X)


def test_processes_of_units_end_with_their_server(model: Path) -> None:
    with serve(model, isolation="process") as server:
        instances = [each for unit in server.units() for each in unit["instances"]]
        processes = [instance["process"] for instance in instances]
        assert processes
        np.testing.assert_array_equal(server["identity_fp32"](X), X)
        os.kill(server.process_id, signal.SIGKILL)
        assert all(map(is_gone, processes))


def test_a_server_for_others_is_asked_on_this_machine(model: Path) -> None:
    with serve(model, host="0.0.0.0", insecure=True) as server:
        assert server.url.startswith("http://127.0.0.1:")
        np.testing.assert_array_equal(server["identity_fp32"](X), X)


def run_program(program: str, model: Path, temporary: Path) -> subprocess.Popen[str]:
    """A program of Python with a server; it prints the server's process."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), "TMPDIR": str(temporary)}
    beginning = f"""
        import os, signal, sys, time
        import tessera_serve
        server = tessera_serve.serve({str(model)!r})
        print(server.process_id, flush=True)
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(beginning) + textwrap.dedent(program)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize(
    ("program", "exit_code"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("raise ValueError('no')", 1),
        ("os.kill(os.getpid(), signal.SIGINT); time.sleep(60)", -signal.SIGINT),
    ],
)
def test_a_server_ends_with_its_program(
    model: Path, tmp_path: Path, program: str, exit_code: int
) -> None:
    with run_program(program, model, tmp_path) as running:
        output, errors = running.communicate(timeout=60)
    assert running.returncode == exit_code, errors
    assert is_gone(int(output))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone ends children of those killed")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_ends_with_a_program_that_is_killed(
    model: Path, tmp_path: Path, number: signal.Signals
) -> None:
    with run_program("time.sleep(60)", model, tmp_path) as running:
        assert running.stdout is not None
        process = int(running.stdout.readline())
        running.send_signal(number)
    assert is_gone(process)


def test_ctrl_c_of_the_terminal_does_not_reach_the_server(model: Path, tmp_path: Path) -> None:
    program = """
        signal.signal(signal.SIGINT, lambda *_: None)
        os.killpg(0, signal.SIGINT)
        time.sleep(0.3)
        assert server["identity_fp32"]([[1.0]]) == [[1.0]]
    """
    with run_program(program, model, tmp_path) as running:
        output, errors = running.communicate(timeout=60)
    assert running.returncode == 0, errors
    assert is_gone(int(output))


def test_a_server_may_be_started_by_a_thread_that_ends(model: Path, tmp_path: Path) -> None:
    program = """
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(1) as threads:
            other = threads.submit(tessera_serve.serve, MODEL).result()
        time.sleep(0.5)
        assert other["identity_fp32"]([[1.0]]) == [[1.0]]
    """
    with run_program(program.replace("MODEL", repr(str(model))), model, tmp_path) as running:
        _, errors = running.communicate(timeout=60)
    assert running.returncode == 0, errors
    assert list(tmp_path.iterdir()) == []
