"""Where the library of ONNX Runtime is that came with the package `onnxruntime`.

`onnxruntime` and `onnxruntime-gpu` put files of the same names into the same folder. Where both are
installed, the library is that of whichever was installed last.
"""

from __future__ import annotations

import warnings
from importlib import metadata
from pathlib import Path

GPU_PACKAGE = "onnxruntime-gpu"
PACKAGES = (GPU_PACKAGE, "onnxruntime")
LIBRARY_NAMES = ("libonnxruntime.so", "libonnxruntime.")


def find_library() -> Path | None:
    """The library, preferably that for GPUs; None where neither package is installed."""
    for package in PACKAGES:
        library = _library_of(package)
        if library is not None:
            return library
    return None


def _library_of(package: str) -> Path | None:
    try:
        files = metadata.distribution(package).files or []
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        if not file.name.startswith(LIBRARY_NAMES) or file.parent.name != "capi":
            continue
        path = Path(str(file.locate()))
        if not path.is_file():
            continue
        if package == GPU_PACKAGE and file.size not in (None, path.stat().st_size):
            _warn_of_overwritten_library()
        return path
    return None


def _warn_of_overwritten_library() -> None:
    warnings.warn(
        "onnxruntime was installed over onnxruntime-gpu, so that there is no GPU; "
        "to mend it: pip install --force-reinstall --no-deps onnxruntime-gpu",
        RuntimeWarning,
        stacklevel=2,
    )
