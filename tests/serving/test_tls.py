"""TLS: the certificate made in memory, a folder's pair, its replacement, and what is wrong with either."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import ssl
import subprocess
import sys
from typing import TYPE_CHECKING

import grpc.aio  # type: ignore[import-untyped]  # grpcio ships no types
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from picker.serving.contract import ServingError
from picker.serving.tls import CertificateStore, ServerTls, self_signed
from tests.serving.harness import PATIENCE, Echo, serving

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("transport")


def put(folder: Path, chain: bytes, key: bytes) -> None:
    """Replace both files as one would by hand: not atomically, with new inodes."""
    folder.mkdir(exist_ok=True)
    for name, content in (("tls.crt", chain), ("tls.key", key)):
        beside = folder / f"{name}.new"
        beside.write_bytes(content)
        beside.replace(folder / name)


async def handshake(port: int, alpn: list[str]) -> tuple[bytes, str | None]:
    """The server's certificate (DER) and the protocol chosen, as Python's ssl sees them."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(alpn)
    async with asyncio.timeout(PATIENCE):
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    secured = writer.get_extra_info("ssl_object")
    seen = secured.getpeercert(binary_form=True), secured.selected_alpn_protocol()
    writer.transport.abort()
    return seen


def der(chain: bytes) -> bytes:
    return x509.load_pem_x509_certificate(chain).public_bytes(serialization.Encoding.DER)


async def test_self_signed_by_default_with_alpn_h2() -> None:
    async with serving(Echo, tls=ServerTls()) as served:
        certificate, protocol = await handshake(served.port, ["http/1.1", "h2"])
        assert protocol == "h2"
        parsed = x509.load_der_x509_certificate(certificate)
        key = parsed.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        assert key.curve.name == "secp256r1"
        usage = parsed.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]
        assert not parsed.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert "localhost" in names.get_values_for_type(x509.DNSName)


async def test_streams_over_tls_with_a_folders_pair(tmp_path: Path) -> None:
    chain, key = self_signed()
    put(tmp_path, chain, key)
    credentials = grpc.ssl_channel_credentials(root_certificates=chain)
    async with serving(Echo, tls=ServerTls(tmp_path), credentials=credentials) as served:
        call = served.call()
        await call.write(b"secret")
        assert await call.read() == b"secret"
        await call.done_writing()
        assert await call.code() == grpc.StatusCode.OK
        assert await handshake(served.port, ["h2"]) == (der(chain), "h2")


async def test_a_new_pair_is_used_by_the_next_connection(tmp_path: Path) -> None:
    first, second = self_signed(), self_signed()
    put(tmp_path, *first)
    async with serving(Echo, tls=ServerTls(tmp_path)) as served:
        assert (await handshake(served.port, ["h2"]))[0] == der(first[0])
        put(tmp_path, *second)
        assert (await handshake(served.port, ["h2"]))[0] == der(second[0])


async def test_a_secret_volumes_link_swap_is_seen(tmp_path: Path) -> None:
    # Kubernetes replaces one link: tls.crt -> ..data/tls.crt, ..data -> a dated folder.
    first, second = self_signed(), self_signed()
    put(tmp_path / "one", *first)
    put(tmp_path / "two", *second)
    (tmp_path / "data").symlink_to("one")
    async with serving(Echo, tls=ServerTls(tmp_path / "data")) as served:
        assert (await handshake(served.port, ["h2"]))[0] == der(first[0])
        (tmp_path / "data.new").symlink_to("two")
        (tmp_path / "data.new").replace(tmp_path / "data")
        assert (await handshake(served.port, ["h2"]))[0] == der(second[0])


async def test_a_broken_new_pair_keeps_the_last_good_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = self_signed(), self_signed()
    put(tmp_path, *first)
    async with serving(Echo, tls=ServerTls(tmp_path)) as served:
        put(tmp_path, second[0], first[1])  # half replaced
        for _ in range(3):
            assert (await handshake(served.port, ["h2"]))[0] == der(first[0])
        errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
        assert len(errors) == 1
        assert "is not the key of the certificate" in errors[0]
        assert "PICKER_CERT_PATH" in errors[0]
        put(tmp_path, *second)
        assert (await handshake(served.port, ["h2"]))[0] == der(second[0])
        shutil.rmtree(tmp_path)
        assert (await handshake(served.port, ["h2"]))[0] == der(second[0])


def encrypted(key: bytes) -> bytes:
    return serialization.load_pem_private_key(key, password=None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"password"),
    )


def test_what_can_be_wrong_with_a_folder_is_one_line_naming_file_and_setting(tmp_path: Path) -> None:
    chain, key = self_signed()
    other_chain, _ = self_signed()
    for content, named, told in [
        (None, "tls.crt", "No such file"),
        ((b"", key), "tls.crt", "no PEM certificate"),
        ((b"\xff\x00", key), "tls.crt", "no PEM certificate"),
        ((key, key), "tls.crt", "no PEM certificate"),
        ((chain, b""), "tls.key", "no unencrypted PEM private key"),
        ((chain, chain), "tls.key", "no unencrypted PEM private key"),
        ((chain, encrypted(key)), "tls.key", "no unencrypted PEM private key"),
        ((other_chain, key), "tls.key", "is not the key of the certificate"),
    ]:
        folder = tmp_path / "tls"
        if content is not None:
            put(folder, *content)
        with pytest.raises(ServingError) as raised:
            CertificateStore(ServerTls(folder))
        line = str(raised.value)
        assert line.startswith("PICKER_CERT_PATH: ")
        assert str(folder / named) in line
        assert told in line
        assert "\n" not in line


def test_a_missing_key_and_an_unreadable_file(tmp_path: Path) -> None:
    put(tmp_path, *self_signed())
    (tmp_path / "tls.key").unlink()
    with pytest.raises(ServingError, match=r"tls\.key \(No such file"):
        CertificateStore(ServerTls(tmp_path))
    (tmp_path / "tls.key").mkdir()
    with pytest.raises(ServingError, match=r"tls\.key \(Is a directory"):
        CertificateStore(ServerTls(tmp_path))


async def test_client_certificates_are_required_where_a_ca_is_given(tmp_path: Path) -> None:
    server, client = self_signed(), self_signed()
    put(tmp_path, *server)
    ca = tmp_path / "ca.crt"
    ca.write_bytes(b"nothing")
    with pytest.raises(ServingError, match=r"PICKER_CLIENT_CA: .*ca\.crt holds no PEM certificate"):
        CertificateStore(ServerTls(tmp_path, ca))
    ca.write_bytes(client[0])
    credentials = grpc.ssl_channel_credentials(root_certificates=server[0])
    async with serving(Echo, tls=ServerTls(tmp_path, ca), credentials=credentials) as served:
        call = served.call()
        assert await call.code() == grpc.StatusCode.UNAVAILABLE
        assert served.handlers == []


def test_plaintext_does_not_import_cryptography() -> None:
    program = "import picker.serving.grpcio, sys; sys.exit('cryptography' in sys.modules)"
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, timeout=60, check=False)
    assert done.returncode == 0
