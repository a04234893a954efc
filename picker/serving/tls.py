"""Server certificates: made in memory, or read from a folder and read again when its files change.

``cryptography`` is imported only here, and only when TLS is on.
"""

from __future__ import annotations

import datetime as dt
import logging
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from picker.serving.contract import ServingError

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger(__name__)

_SELF_SIGNED_LIFE = dt.timedelta(days=3650)
"""Nobody verifies it (gateways are told not to), so it only must outlive the process."""


@dataclass(frozen=True, slots=True)
class ServerTls:
    """How the port is secured."""

    cert_path: Path | None = None
    """A folder with ``tls.crt`` and ``tls.key`` (as in a Kubernetes TLS secret); None: self-signed."""
    client_ca: Path | None = None
    """PEM certificates that clients must be signed by; None: clients need no certificate."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """What a server needs for a handshake, as PEM."""

    chain: bytes
    key: bytes
    client_ca: bytes | None


class CertificateStore:
    """The certificates in force. A broken replacement keeps the last good ones and is logged once."""

    def __init__(self, tls: ServerTls) -> None:
        """Read and check everything; raises ``ServingError`` where something is missing or wrong."""
        self._tls = tls
        self._files = _files(tls)
        # Stamps before contents: a change in between is then seen as one by the next `renewed`.
        self._stamps = self._stamp()
        self._self_signed = None if tls.cert_path else self_signed()
        self.current = self._load()

    def renewed(self) -> Certificates | None:
        """The new certificates if the files changed and are good, else None. Never raises."""
        stamps = self._stamp()
        if stamps == self._stamps:
            return None
        self._stamps = stamps
        try:
            self.current = self._load()
        except ServingError as error:
            _log.error("%s; the certificate read before stays in use", error)
            return None
        _log.info("the server's certificates were read again")
        return self.current

    def _load(self) -> Certificates:
        chain, key = self._self_signed or _key_pair(self._files["tls.crt"], self._files["tls.key"])
        client_ca = self._files.get("client CA")
        return Certificates(chain, key, None if client_ca is None else _client_ca(client_ca))

    def _stamp(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stamp(path) for path in self._files.values())


def self_signed() -> tuple[bytes, bytes]:
    """A new ECDSA P-256 certificate and its key, as PEM; good for servers only, not as a CA."""
    # Imported here and below, since they cost 50 ms that a plaintext server need not pay.
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "serve-picker")])
    hosts = ["localhost", *(host for host in [socket.gethostname()] if host.isascii() and host)]
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))  # clocks differ
        .not_valid_after(now + _SELF_SIGNED_LIFE)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return (
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def _files(tls: ServerTls) -> dict[str, Path]:
    files = {}
    if tls.cert_path is not None:
        files = {"tls.crt": tls.cert_path / "tls.crt", "tls.key": tls.cert_path / "tls.key"}
    if tls.client_ca is not None:
        files["client CA"] = tls.client_ca
    return files


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What differs after any kind of replacement, a moved symbolic link included."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def _read(path: Path, setting: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ServingError(f"{setting}: cannot read {path} ({error.strerror})") from error


def _key_pair(chain_file: Path, key_file: Path) -> tuple[bytes, bytes]:
    from cryptography import x509  # noqa: PLC0415 - see self_signed
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415

    chain = _read(chain_file, "PICKER_CERT_PATH")
    key = _read(key_file, "PICKER_CERT_PATH")
    try:
        certificate = x509.load_pem_x509_certificates(chain)[0]
    except ValueError as error:
        raise ServingError(f"PICKER_CERT_PATH: {chain_file} holds no PEM certificate") from error
    try:
        private_key = load_pem_private_key(key, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: it is encrypted
        raise ServingError(f"PICKER_CERT_PATH: {key_file} holds no unencrypted PEM private key") from error
    if certificate.public_key() != private_key.public_key():
        raise ServingError(f"PICKER_CERT_PATH: {key_file} is not the key of the certificate in {chain_file}")
    return chain, key


def _client_ca(path: Path) -> bytes:
    from cryptography import x509  # noqa: PLC0415 - see self_signed

    pem = _read(path, "PICKER_CLIENT_CA")
    try:
        x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise ServingError(f"PICKER_CLIENT_CA: {path} holds no PEM certificate") from error
    return pem
