"""Models of PyTorch become ONNX files with exits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera_serve
from tessera_serve import ExportFailed, export, serve

try:
    import torch
except ImportError:
    pytest.skip("*** SKIPPED: torch is not installed ***", allow_module_level=True)

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


class Net(torch.nn.Module):
    """A classifier with another one on its way."""

    def __init__(self, gives: str = "tensor") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gives = gives
        self.stem = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
        self.early = torch.nn.Linear(8, 3)
        self.body = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        hidden = self.stem(x)
        early, scores = self.early(hidden), self.head(self.body(hidden))
        gives = {"dict": {"scores": scores, "at_stem": early}, "tuple": (early, scores)}
        return gives.get(self.gives, scores)


def expected(net: Any, x: Any, *, early: bool) -> Any:
    """What PyTorch computes."""
    with torch.no_grad():
        hidden = net.eval().stem(x)
        return (net.early(hidden) if early else net.head(net.body(hidden))).numpy()


@pytest.mark.parametrize(
    ("gives", "source", "output"),
    [
        ("tensor", "module", "output"),
        ("tensor", "early", "output"),
        ("tuple", 0, "output"),
        ("dict", "at_stem", "scores"),
    ],
)
def test_an_exported_model_is_served_with_its_exit(
    tmp_path: Path, gives: str, source: Any, output: str
) -> None:
    net = Net(gives)
    exits = {"soon": net.early if source == "module" else source}
    file = export(net, torch.rand(1, 4), tmp_path / "net.onnx", exits=exits, thresholds=0.0)
    manifest = json.loads((tmp_path / "net.exits.json").read_text())
    assert manifest == {"exits": [{"output": "soon", "threshold": 0.0}]}
    x = torch.rand(5, 4)
    with serve(file) as server:
        task = server["net"]
        assert str(task.inputs[0]) == "x: FP32[?,4]"
        assert [port.name for port in task.outputs] == [output]
        np.testing.assert_allclose(task(x), expected(net, x, early=False), atol=1e-6)
        task.exits["soon"].threshold = 1.0
        response = task.infer(x)
        assert response.exit == "soon"
        np.testing.assert_allclose(response.output, expected(net, x, early=True), atol=1e-6)


def test_a_model_is_left_as_it_was(tmp_path: Path) -> None:
    net = Net()
    net.body.eval()
    export(net, torch.rand(2, 4), tmp_path / "net.onnx", exits={"soon": net.early})
    assert net.training and net.stem.training and not net.body.training
    assert not net.early._forward_hooks


def test_without_exits_no_list_of_exits_is_left(tmp_path: Path) -> None:
    net = Net()
    export(net, torch.rand(2, 4), tmp_path / "net.onnx", exits={"soon": net.early})
    export(net, torch.rand(2, 4), tmp_path / "net.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]


def test_names_and_dimensions_may_be_said(tmp_path: Path) -> None:
    class Words(torch.nn.Module):
        def forward(self, tokens: Any, mask: Any) -> Any:
            return tokens.sum(1) * mask.sum(1), tokens + 1

    names = {"tokens": {0: "batch", 1: "length"}, "mask": {0: "batch", 1: "length"}}
    example = (torch.ones(1, 7), torch.ones(1, 7))
    file = export(
        Words(),
        example,
        tmp_path / "words.onnx",
        output_names=["total", "next"],
        open_dimensions=names,
    )
    with serve(file) as server:
        assert server["words"].inputs[1].shape == (-1, -1)
        got = server["words"](np.ones([2, 3], np.float32), np.ones([2, 3], np.float32))
    assert got["total"].tolist() == [9, 9]
    assert got["next"].shape == (2, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"exits": {"soon": "nothing"}}, "'nothing' is neither a module nor an output"),
        ({"exits": {"soon": 5}}, "5 is neither a module nor an output"),
        ({"exits": {"soon": "body"}}, "the rest of the model uses its scores"),
        ({"exits": {"soon": "head"}}, "is the output of the whole model"),
        ({"exits": {"output": "early"}}, '"output" is an exit and an output'),
        ({"exits": {"soon": "early"}, "thresholds": 2.0}, "the threshold is 2.0, expected 0 to 1"),
        ({"exits": {"soon": "early"}, "thresholds": {"late": 0.5}}, "got late, expected soon"),
        ({"input_names": ["a", "b"]}, "input_names has 2 names, expected one for each of 1"),
        ({"output_names": ["a", "b"]}, "output_names has 2 names, expected one for each of 1"),
        ({"open_dimensions": {"z": {0: "batch"}}}, 'there is no input "z", expected x'),
    ],
)
def test_what_can_not_be_exported_is_refused(
    tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ExportFailed, match=message):
        export(Net(), torch.rand(2, 4), tmp_path / "net.onnx", **arguments)
    assert list(tmp_path.iterdir()) == []


def test_tensors_of_torch_are_arrays(server: tessera_serve.Server) -> None:
    assert server["identity_fp32"](torch.ones(1, 2)).tolist() == [[1, 1]]
    with pytest.raises(tessera_serve.InvalidRequest, match="requires grad"):
        server["identity_fp32"](torch.ones(1, 2, requires_grad=True))
