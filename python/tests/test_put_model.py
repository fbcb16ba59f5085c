"""Models are put into the repository of a running server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from test_model_files import save_with_external_data

import tessera_serve
from tessera_serve import InvalidRequest, NotFound, TesseraError

X = np.ones([1, 3], np.float32)


@pytest.fixture(autouse=True)
def needs_uploads(server: tessera_serve.Server, model_folder: Path) -> None:
    """Skips these tests, out loud, where the server takes no models."""
    try:
        server.put_model("tried", model_folder / "pair.onnx", dry_run=True)
    except NotFound as error:
        pytest.skip(f"*** SKIPPED: this server takes no models ({error}) ***")


def test_a_model_is_put_and_served(server: tessera_serve.Server, model_folder: Path) -> None:
    assert isinstance(server.put_model("uploaded", model_folder / "pair.onnx"), dict)
    server.put_task("uploaded", model="uploaded")
    a = np.ones([1, 4], np.float32)
    np.testing.assert_array_equal(server["uploaded"](a, a)["sum"], 2 * a)
    assert "uploaded" in [model["name"] for model in server.models()]
    server.remove_task("uploaded")
    server.remove_model("uploaded")
    assert "uploaded" not in [model["name"] for model in server.models()]


def test_exits_come_with_their_model(server: tessera_serve.Server, model_folder: Path) -> None:
    server.put_model("leaving", model_folder / "classifier.onnx")
    server.put_task("leaving", model="leaving")
    assert server["leaving"].infer(100 * np.eye(1, 3, dtype=np.float32)).exit == "early"
    server.remove_task("leaving")


def test_external_data_comes_with_its_model(server: tessera_serve.Server, tmp_path: Path) -> None:
    model = save_with_external_data(tmp_path, "weights.bin", "external.onnx")
    server.put_model("external", model)
    server.put_task("external", model="external")
    got = server["external"](np.zeros(2048, np.float32))
    np.testing.assert_array_equal(got, np.arange(2048))
    server.remove_task("external")


def test_a_dry_run_changes_nothing(server: tessera_serve.Server, model_folder: Path) -> None:
    server.put_model("dry", model_folder / "pair.onnx", dry_run=True)
    with pytest.raises(TesseraError, match="dry"):
        server.put_task("dry", model="dry")


def test_what_is_no_model_is_refused(server: tessera_serve.Server, tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    # A field of protobuf that ONNX has not.
    path.write_bytes(b"\xc2\x3e\x03abc")
    with pytest.raises(InvalidRequest):
        server.put_model("broken", path)


def test_the_client_for_asyncio_puts_models_too(
    server: tessera_serve.Server, model_folder: Path
) -> None:
    async def main() -> None:
        async with server.async_client() as client:
            await client.put_model("late", model_folder / "classifier.onnx")
            await client.put_task("late", model="late")
            assert (await client["late"](X)).shape == X.shape
            await client.remove_task("late")

    asyncio.run(main())
