"""`python -m tessera_serve`: the binary, with the library of ONNX Runtime of this environment."""

from __future__ import annotations

import os
import sys

from tessera_serve.binary import binary_environment, find_binary
from tessera_serve.errors import BinaryNotFound


def main() -> None:
    """Becomes the binary, with this process's arguments."""
    try:
        binary = str(find_binary())
    except BinaryNotFound as error:
        sys.exit(f"tessera_serve: {error}")
    os.execve(binary, [binary, *sys.argv[1:]], binary_environment())


if __name__ == "__main__":
    main()
