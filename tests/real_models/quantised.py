"""Exports of this list, quantised by ONNX Runtime's tools to 8 bits, or halved to 16."""

from pathlib import Path

import numpy

import exports
import files
from files import Model


def models() -> list[Model]:
    return [
        static("resnet18-qdq", "torchvision/resnet18"),
        static("mobilenet_v2-qdq", "torchvision/mobilenet_v2"),
        static("mobilenet_v3-qdq", "torchvision/mobilenet_v3_small"),
        dynamic("minilm-int8", "transformers/minilm"),
        dynamic("vit-int8", "torchvision/vit"),
        half("resnet18-f16", "torchvision/resnet18", keep_io_types=True),
        half("resnet18-f16-all", "torchvision/resnet18", keep_io_types=False),
        half("minilm-f16", "transformers/minilm", keep_io_types=True),
    ]


def source_of(name: str) -> Model:
    """The model of the list that another is made of."""
    (model,) = [model for model in exports.models() if model.name == name]
    return model


def derived(name: str, source: str, change) -> Model:
    """A model that `change` makes of another's file, and that is asked the same."""
    model = source_of(source)

    def make(path: Path):
        change(files.ensure(model), path)

    return Model(f"quantised/{name}", make, model.shapes, model.ranges)


def static(name: str, source: str) -> Model:
    """Weights and activations in 8 bits, as pairs of QuantizeLinear and DequantizeLinear."""

    def change(old: Path, new: Path):
        from onnxruntime import quantization

        quantization.quantize_static(
            old,
            new,
            Calibration(),
            quant_format=quantization.QuantFormat.QDQ,
            # As ONNX Runtime advises: with one scale for all channels much is lost.
            per_channel=True,
            weight_type=quantization.QuantType.QInt8,
        )

    return derived(name, source, change)


class Calibration:
    """Two pictures that say how large activations are."""

    def __init__(self):
        random = numpy.random.default_rng(0)
        shape = (2, 3, 224, 224)
        pictures = [random.standard_normal(shape).astype(numpy.float32) for _ in range(2)]
        self.left = iter(pictures)

    def get_next(self) -> dict | None:
        picture = next(self.left, None)
        return None if picture is None else {"x": picture}


def dynamic(name: str, source: str) -> Model:
    """Weights in 8 bits, and activations when they are there."""

    def change(old: Path, new: Path):
        from onnxruntime import quantization

        quantization.quantize_dynamic(old, new, weight_type=quantization.QuantType.QInt8)

    return derived(name, source, change)


def half(name: str, source: str, keep_io_types: bool) -> Model:
    """All in 16 bits, perhaps but for inputs and outputs."""

    def change(old: Path, new: Path):
        import onnx
        from onnxruntime.transformers.float16 import convert_float_to_float16

        model = convert_float_to_float16(onnx.load(old), keep_io_types=keep_io_types)
        onnx.save(model, new)

    return derived(name, source, change)
