"""Servers that want tokens, and servers with TLS."""

from __future__ import annotations

import ipaddress
import ssl
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import tessera_serve
from tessera_serve import AccessDenied, Client, ServerLost

INFER = "3f0c7c0e2b7a4f0d9c5e"
CHANGE = "591785b794601e212b26"
X = np.ones([1, 2], np.float32)


def write_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for this machine that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tessera test")])
    now = datetime.now(timezone.utc)
    alternatives = [
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    ]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "server.pem", folder / "server.key"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths


def test_a_token_lets_in(model_folder: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"app infer {INFER}\nops change,infer {CHANGE}\n")
    model = model_folder / "identity_fp32.onnx"
    with tessera_serve.serve(model, token_file=tokens, token=CHANGE) as server:
        np.testing.assert_array_equal(server["identity_fp32"](X), X)
        assert list(server) == ["identity_fp32"]
        with Client(server.url, server.control_url) as nobody:
            with pytest.raises(AccessDenied) as caught:
                nobody["identity_fp32"](X)
            assert caught.value.status == 401
        with Client(server.url, server.control_url, token=INFER) as app:
            np.testing.assert_array_equal(app["identity_fp32"](X), X)
            with pytest.raises(AccessDenied) as caught:
                app.remove_task("identity_fp32")
            assert caught.value.status == 403
            with pytest.raises(AccessDenied):
                app.events()


def test_tls_is_spoken_and_checked(model_folder: Path, tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    model = model_folder / "identity_fp32.onnx"
    with tessera_serve.serve(model, tls_cert=certificate, tls_key=key, ca=certificate) as server:
        assert server.url.startswith("https://127.0.0.1:")
        np.testing.assert_array_equal(server["identity_fp32"](X), X)
        with server.events() as events:
            server["identity_fp32"](X)
            assert next(events)["kind"] in ("request", "usage")
        verify_failed = pytest.raises(ServerLost, match="CERTIFICATE_VERIFY_FAILED")
        with Client(server.url) as suspicious, verify_failed:
            suspicious["identity_fp32"](X)
        context = ssl.create_default_context(cafile=str(certificate))
        with Client(server.url, ca=context) as client:
            np.testing.assert_array_equal(client["identity_fp32"](X), X)
