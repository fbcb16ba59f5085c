"""Content of requests that is read from a disk while it is sent: a file, or files as an archive."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tessera_serve.errors import TesseraError

READ_AT_ONCE = 1 << 20
TAR_BLOCK = tarfile.BLOCKSIZE


@dataclass(frozen=True)
class NamedFile:
    """A file, and its name in an archive."""

    name: str
    path: Path


class FileBody:
    """One file as it is."""

    is_on_disk = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self.length = path.stat().st_size

    def parts(self) -> Iterator[bytes]:
        """The file, a piece at a time."""
        return _pieces(self._path, self.length)


class TarBody:
    """Files as a tar archive, which is made while it is sent."""

    is_on_disk = True

    def __init__(self, files: Sequence[NamedFile]) -> None:
        self._entries = [(file.path, _header(file), file.path.stat().st_size) for file in files]
        sizes = [len(header) + _padded(size) for _, header, size in self._entries]
        self.length = sum(sizes) + 2 * TAR_BLOCK

    def parts(self) -> Iterator[bytes]:
        """Headers and files in turn, and two empty blocks at the end."""
        for path, header, size in self._entries:
            yield header
            yield from _pieces(path, size)
            yield bytes(_padded(size) - size)
        yield bytes(2 * TAR_BLOCK)


def _header(file: NamedFile) -> bytes:
    header = tarfile.TarInfo(file.name)
    header.size = file.path.stat().st_size
    return header.tobuf(tarfile.PAX_FORMAT)


def _padded(size: int) -> int:
    return -(-size // TAR_BLOCK) * TAR_BLOCK


def _pieces(path: Path, size: int) -> Iterator[bytes]:
    """A file of this size. It may not become shorter meanwhile, and what is added is left out."""
    remaining = size
    try:
        with path.open("rb") as file:
            while remaining > 0:
                piece = file.read(min(READ_AT_ONCE, remaining))
                if not piece:
                    raise TesseraError(f"{path}: was cut short while it was sent")
                remaining -= len(piece)
                yield piece
    except OSError as error:
        # Not to be taken for a trouble of the connection.
        raise TesseraError(f"{path}: can't be read while it is sent: {error}") from error
