"""Where a server is: the parts of its URL, and how its certificate is checked."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from typing import Union
from urllib.parse import urlsplit

from tessera_serve.errors import InvalidRequest

Authority = Union[str, "os.PathLike[str]", ssl.SSLContext, None]

# The ports that `tessera serve` takes where nobody says.
PROTOCOL_PORT = 8000
CONTROL_PORT = 8003


@dataclass(frozen=True)
class Address:
    """Where a port of a server is."""

    host: str
    port: int
    prefix: str
    tls: ssl.SSLContext | None

    @property
    def url(self) -> str:
        """The address as a URL."""
        scheme = "http" if self.tls is None else "https"
        return f"{scheme}://{self.host_header}{self.prefix}"

    @property
    def host_header(self) -> str:
        """Host and port as a header of HTTP has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(url: str, authority: Authority) -> Address:
    """The address that a URL stands for. `authority` is the file of a CA, or an SSL context."""
    text = url if "://" in url else f"http://{url}"
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidRequest(f'"{url}" is no address, expected one such as http://localhost:8000')
    try:
        port = parts.port
    except ValueError as error:
        raise InvalidRequest(f'"{url}": {error}, expected a port from 1 to 65535') from None
    is_tls = parts.scheme == "https"
    return Address(
        host=parts.hostname,
        port=port or (443 if is_tls else 80),
        prefix=parts.path.rstrip("/"),
        tls=_tls_context(authority) if is_tls else None,
    )


def control_url_beside(url: str) -> str | None:
    """The control plane of a server on its usual ports; None where the port is another."""
    address = parse_address(url, None)
    if address.port != PROTOCOL_PORT:
        return None
    scheme = address.url.split("://")[0]
    host = address.host_header.rsplit(":", 1)[0]
    return f"{scheme}://{host}:{CONTROL_PORT}"


def _tls_context(authority: Authority) -> ssl.SSLContext:
    if isinstance(authority, ssl.SSLContext):
        return authority
    return ssl.create_default_context(cafile=None if authority is None else os.fspath(authority))
