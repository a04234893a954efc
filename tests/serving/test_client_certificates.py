"""Client certificates on the ext_proc port: who gets in, who is told why not, and a new CA."""

from __future__ import annotations

import datetime as dt
import logging
from typing import TYPE_CHECKING

import grpc.aio  # type: ignore[import-untyped]  # grpcio ships no types
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from picker.serving.tls import ServerTls, self_signed
from tests.serving import harness
from tests.serving.harness import METHOD, PATIENCE, Echo, serving

if TYPE_CHECKING:
    from pathlib import Path

NOW = dt.datetime.now(dt.UTC)
DAY = dt.timedelta(days=1)
REFUSED = "a client is refused for its certificate; give it one that PICKER_CLIENT_CA has signed"


class Authority:
    """A CA that signs clients."""

    def __init__(self, name: str = "gateways") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        public = self._key.public_key()
        certificate = self._builder(self._name, public, NOW + DAY).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.pem = certificate.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)

    def client(self, expires: dt.datetime = NOW + DAY) -> tuple[bytes, bytes]:
        """A certificate chain and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "envoy")])
        certificate = self._builder(name, key.public_key(), expires).sign(self._key, hashes.SHA256())
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return certificate.public_bytes(Encoding.PEM), pem

    def _builder(
        self, name: x509.Name, key: ec.EllipticCurvePublicKey, expires: dt.datetime
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - 7 * DAY)
            .not_valid_after(expires)
        )


class Door:
    """The files of a server that lets in who was signed by ``authority``."""

    def __init__(self, folder: Path, authority: Authority) -> None:
        self.chain, key = self_signed()
        (folder / "tls.crt").write_bytes(self.chain)
        (folder / "tls.key").write_bytes(key)
        self.ca = folder / "ca.crt"
        self.ca.write_bytes(authority.pem)
        self.tls = ServerTls(folder, self.ca)

    def credentials(self, client: tuple[bytes, bytes] | None) -> grpc.ChannelCredentials:
        chain, key = client or (None, None)
        return grpc.ssl_channel_credentials(self.chain, key, chain)

    async def lets_in(self, port: int, client: tuple[bytes, bytes] | None) -> bool:
        options = [("grpc.ssl_target_name_override", "localhost")]
        target = f"127.0.0.1:{port}"
        async with grpc.aio.secure_channel(target, self.credentials(client), options=options) as channel:
            call = channel.stream_stream(METHOD)(timeout=PATIENCE)
            try:
                await call.write(b"hello")
                return bool(await call.read() == b"hello")
            except grpc.aio.AioRpcError as error:
                return bool(error.code() != grpc.StatusCode.UNAVAILABLE)


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture
def door(tmp_path: Path, authority: Authority) -> Door:
    return Door(tmp_path, authority)


@pytest.mark.usefixtures("transport")
async def test_who_was_signed_gets_in_and_nobody_else(door: Door, authority: Authority) -> None:
    async with serving(Echo, tls=door.tls, credentials=door.credentials(authority.client())) as served:
        assert await door.lets_in(served.port, authority.client())
        assert not await door.lets_in(served.port, None)
        assert not await door.lets_in(served.port, Authority().client())
        assert not await door.lets_in(served.port, authority.client(NOW - DAY))


@pytest.mark.usefixtures("transport")
async def test_another_ca_counts_for_the_next_connection(door: Door, authority: Authority) -> None:
    new = Authority("new gateways")
    async with serving(Echo, tls=door.tls, credentials=door.credentials(authority.client())) as served:
        assert await door.lets_in(served.port, authority.client())
        door.ca.write_bytes(b"nothing")
        assert await door.lets_in(served.port, authority.client()), "the last good one stays"
        door.ca.write_bytes(new.pem)
        assert await door.lets_in(served.port, new.client())
        assert not await door.lets_in(served.port, authority.client())


@pytest.mark.skipif(harness.make is harness.TRANSPORTS["grpcio"], reason="gRPC's core tells in its own words")
@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("none", "it has none"),
        ("strange", "unable to get local issuer certificate"),
        ("expired", "certificate has expired"),
    ],
)
async def test_a_refusal_is_one_line_that_says_why(
    door: Door, authority: Authority, caplog: pytest.LogCaptureFixture, kind: str, why: str
) -> None:
    client = {
        "none": None,
        "strange": Authority("strangers").client(),
        "expired": authority.client(NOW - DAY),
    }[kind]
    async with serving(Echo, tls=door.tls, credentials=door.credentials(authority.client())) as served:
        assert not await door.lets_in(served.port, client)
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert {record.getMessage() for record in told} == {REFUSED}
    assert {vars(record)["fields"]["error"] for record in told} == {why}
