"""A model of the list, and the folder that models are made in once and found in later."""

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Model:
    """A model: how its file is made, and what it is asked with."""

    # GROUP/NAME. The file is called NAME.onnx, and so is the task that serves it.
    name: str
    # Writes the file at a path, and what belongs to it beside it.
    make: Callable[[Path], None]
    # Shapes of all inputs with open dimensions; where there are several, each is tried.
    shapes: tuple[Shapes, ...] = ({},)
    # lo <= value < hi, for inputs whose values mean something.
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    # Inputs whose values change slowly along the last dimension, as those of speech do.
    slow: tuple[str, ...] = ()


def folder() -> Path:
    """Where packages and models are kept: REAL_MODELS_FOLDER, or target/real-models."""
    chosen = os.environ.get("REAL_MODELS_FOLDER")
    return Path(chosen).resolve() if chosen else ROOT / "target" / "real-models"


def fill_once(place: Path, fill: Callable[[Path], None]) -> Path:
    """A folder that `fill` fills where it isn't there yet: whole, or not at all."""
    if place.exists():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        fill(unfinished)
        unfinished.rename(place)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return place


def ensure(model: Model) -> Path:
    """The file of a model, which is made where it isn't there yet."""
    file = f"{model.name.split('/')[1]}.onnx"
    place = fill_once(folder() / "models" / model.name, lambda new: model.make(new / file))
    return place / file
