"""The version of this package, which is that of the binary."""

from __future__ import annotations

from importlib import metadata


def installed_version() -> str:
    """The version that is installed; `unknown` where the package is used from its sources."""
    try:
        return metadata.version("tessera-serve")
    except metadata.PackageNotFoundError:
        return "unknown"
