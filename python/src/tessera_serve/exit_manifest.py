"""The file that lists a model's exits: `cats.exits.json` beside `cats.onnx`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tessera_serve.errors import ExportFailed


def manifest_path(model: Path) -> Path:
    """Where the exits of a model are listed."""
    return model.with_name(f"{model.stem}.exits.json")


def write_manifest(model: Path, thresholds: Mapping[str, float]) -> None:
    """Lists the exits of a model: outputs, by name, and their thresholds."""
    exits = [{"output": name, "threshold": value} for name, value in thresholds.items()]
    manifest_path(model).write_text(json.dumps({"exits": exits}, indent=2) + "\n")


def thresholds_of(
    exits: Mapping[str, object], thresholds: float | Mapping[str, float]
) -> dict[str, float]:
    """The threshold of each exit, from one for all or from one for each."""
    if not isinstance(thresholds, Mapping):
        thresholds = dict.fromkeys(exits, float(thresholds))
    if set(thresholds) != set(exits):
        expected = ", ".join(exits) or "none"
        raise ExportFailed(f"thresholds: got {', '.join(thresholds)}, expected {expected}")
    for name, value in thresholds.items():
        if not 0.0 <= value <= 1.0:
            raise ExportFailed(f'exit "{name}": the threshold is {value}, expected 0 to 1')
    return {name: float(thresholds[name]) for name in exits}
