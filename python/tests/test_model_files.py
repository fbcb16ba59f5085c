"""What lies beside a model is found, and goes as an archive."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tessera_serve.disk_body import FileBody, NamedFile, TarBody
from tessera_serve.errors import InvalidRequest, TesseraError
from tessera_serve.external_data import external_locations
from tessera_serve.http_call import Body, Call
from tessera_serve.model_upload import model_upload_call


def save_with_external_data(folder: Path, location: str, name: str = "model.onnx") -> Path:
    """A model whose one weight is in another file."""
    weight = numpy_helper.from_array(np.arange(2048, dtype=np.float32), "w")
    shape = [2048]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "added",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [weight],
    )
    opset = helper.make_opsetid("", 18)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=9)
    (folder / location).parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / name, save_as_external_data=True, location=location, size_threshold=0)
    return folder / name


def names_in(call: Call[object]) -> dict[str, bytes]:
    """The files of an archive that a request carries."""
    assert call.headers["Content-Type"] == "application/x-tar"
    content = b"".join(call.body.parts())
    assert len(content) == call.body.length
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return {entry.name: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]


def test_a_model_alone_goes_as_it_is(tmp_path: Path, model_folder: Path) -> None:
    model = model_folder / "pair.onnx"
    call = model_upload_call("other", model, is_dry_run=True)
    assert (call.method, call.path) == ("PUT", "/v1/models/other?dry_run=true")
    assert call.headers["Content-Type"] == "application/octet-stream"
    assert b"".join(call.body.parts()) == model.read_bytes()
    assert call.body.length == model.stat().st_size


def test_external_data_goes_with_its_model(tmp_path: Path) -> None:
    model = save_with_external_data(tmp_path, "weights/all of it.bin")
    assert external_locations(model) == ["weights/all of it.bin"]
    files = names_in(model_upload_call("模型", model, is_dry_run=False))
    assert list(files) == ["模型.onnx", "weights/all of it.bin"]
    assert len(files["weights/all of it.bin"]) == 2048 * 4


def test_names_in_an_archive_have_no_detours(tmp_path: Path) -> None:
    model = save_with_external_data(tmp_path, "a/../weights.bin")
    assert external_locations(model) == ["a/../weights.bin"]
    files = names_in(model_upload_call("m", model, is_dry_run=False))
    assert list(files) == ["m.onnx", "weights.bin"]


def test_what_lies_beside_a_model_goes_with_it(tmp_path: Path, model_folder: Path) -> None:
    model = tmp_path / "cats.onnx"
    model.write_bytes((model_folder / "pair.onnx").read_bytes())
    (tmp_path / "cats.exits.json").write_text("{}")
    (tmp_path / "cats.labels.txt").write_text("cat\n")
    (tmp_path / "own.txt").write_text("own\n")
    config = 'output { name: "sum" label_filename: "own.txt" }\n# label_filename: "other.txt"\n'
    (tmp_path / "cats.config.pbtxt").write_text(config)
    files = names_in(model_upload_call("dogs", model, is_dry_run=False))
    assert list(files) == [
        "dogs.onnx",
        "dogs.exits.json",
        "dogs.labels.txt",
        "dogs.config.pbtxt",
        "own.txt",
    ]


@pytest.mark.parametrize(
    ("file", "is_found"), [("densenet/1/model.onnx", True), ("densenet/1/other.onnx", False)]
)
def test_the_configuration_in_tritons_layout_goes_along(
    tmp_path: Path, model_folder: Path, file: str, is_found: bool
) -> None:
    model = tmp_path / file
    model.parent.mkdir(parents=True)
    model.write_bytes((model_folder / "pair.onnx").read_bytes())
    (tmp_path / "densenet" / "config.pbtxt").write_text('platform: "onnxruntime_onnx"')
    call = model_upload_call("densenet", model, is_dry_run=False)
    if is_found:
        assert list(names_in(call)) == ["densenet.onnx", "densenet.config.pbtxt"]
    else:
        assert isinstance(call.body, FileBody)


def test_external_data_in_branches_and_functions_is_found(tmp_path: Path) -> None:
    tensor = TensorProto(name="c", data_type=TensorProto.FLOAT, dims=[1])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="offset", value="8")
    tensor.external_data.add(key="location", value="branch.bin")
    branch = helper.make_graph(
        [helper.make_node("Constant", [], ["c"], value=tensor)],
        "branch",
        [],
        [helper.make_tensor_value_info("c", TensorProto.FLOAT, [1])],
    )
    graph = helper.make_graph(
        [helper.make_node("If", ["condition"], ["y"], then_branch=branch, else_branch=branch)],
        "branching",
        [helper.make_tensor_value_info("condition", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )
    other = TensorProto()
    other.CopyFrom(tensor)
    other.external_data[1].value = "function.bin"
    function = helper.make_function(
        "own", "Constants", [], ["c"], [helper.make_node("Constant", [], ["c"], value=other)], []
    )
    model = helper.make_model(graph, functions=[function])
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert external_locations(path) == ["branch.bin", "function.bin"]


def test_external_data_that_is_missing_or_elsewhere_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    model = save_with_external_data(folder, "weights.bin")
    (folder / "weights.bin").unlink()
    with pytest.raises(InvalidRequest, match='external data "weights.bin" is not there'):
        model_upload_call("m", model, is_dry_run=False)
    (tmp_path / "secret").write_text("secret")
    (folder / "weights.bin").symlink_to(tmp_path / "secret")
    with pytest.raises(InvalidRequest, match='"weights.bin" leads out of'):
        model_upload_call("m", model, is_dry_run=False)


@pytest.mark.parametrize("content", [b"", b"\x3a\xff\xff\xff\xff\x7f", b"\x3a\x05", b"\xff" * 20])
def test_what_is_no_model_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(InvalidRequest, match="ONNX model"):
        model_upload_call("m", path, is_dry_run=False)
    with pytest.raises(InvalidRequest, match="expected the file of an ONNX model"):
        model_upload_call("m", tmp_path / "nothing.onnx", is_dry_run=False)


def test_a_file_that_is_cut_short_while_it_is_sent_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(bytes(1000))
    bodies: list[Body] = [FileBody(path), TarBody([NamedFile("model.onnx", path)])]
    path.write_bytes(bytes(10))
    for body in bodies:
        with pytest.raises(TesseraError, match="was cut short"):
            list(body.parts())
    path.unlink()
    for body in bodies:
        with pytest.raises(TesseraError, match="can't be read while it is sent"):
            list(body.parts())
