"""What the source says of metrics: crates/telemetry, where all of them are written.

Metrics of GPUs are seen on no machine without one. `gpu-page.txt` is a page of them that was made
up; here it is held to the source, so that the board and the tables can be held to it."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "deploy/monitoring"))

from metrics_page import Family, read_page  # noqa: E402

TELEMETRY = ROOT / "crates/telemetry/src"
GPU_SOURCE = TELEMETRY / "gpu_metrics.rs"
GPU_PAGE = pathlib.Path(__file__).resolve().parent / "gpu-page.txt"
NAME = re.compile(r'"((?:nv|tessera)_[a-z_]+)"')

# All that is not seen in the test, and why. A prefix stands for all metrics that begin so.
NOT_SEEN_HERE = {
    "nv_gpu_": "needs a GPU",
    "nv_energy_": "needs a GPU",
    "tessera_gpu_": "needs a GPU",
    "tessera_unit_gpu_": "needs a unit on a GPU",
}


def is_not_seen(name: str) -> bool:
    return name.startswith(tuple(NOT_SEEN_HERE))


def names_in_source() -> set[str]:
    """The names of all metrics that the source has."""
    return {name for file in TELEMETRY.glob("*.rs") for name in NAME.findall(file.read_text())}


def gpu_page() -> dict[str, Family]:
    return read_page(GPU_PAGE.read_text())


def check_gpu_page(page: dict[str, Family], source: str) -> list[str]:
    """Whether the page that was made up is as the source would write it."""
    written = set(NAME.findall(source))
    complaints = [f"{name} is not in gpu_metrics.rs" for name in page if name not in written]
    complaints += [f"gpu-page.txt lacks {name}" for name in sorted(written - set(page))]
    flat = re.sub(r"\s+", " ", source)
    for name, family in page.items():
        if f'"{family.help}"' not in flat:
            complaints.append(f"{name}: gpu_metrics.rs has another HELP")
        kind = re.search(rf'"{name}", MetricKind::(\w+)', flat)
        if kind and kind[1].lower() != family.kind:
            complaints.append(f"{name} is a {kind[1].lower()} in gpu_metrics.rs")
        for label in family.labels():
            if f'("{label}", ' not in flat:
                complaints.append(f"{name}: nothing in gpu_metrics.rs has the label {label}")
    return complaints


def check_names(told: set[str], source: set[str]) -> list[str]:
    """Whether servers and the page of GPUs tell exactly what the source has."""
    complaints = [f"{name} is told, and not in crates/telemetry" for name in sorted(told - source)]
    complaints += [f"{name} is in crates/telemetry, and not told" for name in sorted(source - told)]
    return complaints
