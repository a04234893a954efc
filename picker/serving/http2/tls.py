"""The certificates of a ``CertificateStore`` as contexts of Python's ``ssl``."""

from __future__ import annotations

import logging
import os
import ssl
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from picker.serving.tls import Certificates, CertificateStore


_log = logging.getLogger(__name__)

_NO_CERTIFICATE = "PEER_DID_NOT_RETURN_A_CERTIFICATE"
"""OpenSSL's reason."""


class _ToldRefusals(ssl.SSLObject):
    """The server's end of a handshake that says why it refuses a client, which asyncio keeps to itself."""

    def do_handshake(self) -> None:
        """As far as it goes. Raises what it raises."""
        try:
            super().do_handshake()
        except ssl.SSLCertVerificationError as error:
            _tell_refusal(error.verify_message)
            raise
        except ssl.SSLError as error:
            if error.reason == _NO_CERTIFICATE:
                _tell_refusal("it has none")
            raise


def _tell_refusal(why: str) -> None:
    _log.warning(
        "a client is refused for its certificate; give it one that PICKER_CLIENT_CA has signed",
        extra={"fields": {"error": why}},
    )


def server_context(store: CertificateStore) -> ssl.SSLContext:
    """A context that serves each handshake with what the store holds by then.

    OpenSSL asks for the context of a server name before it picks a certificate, whether the client
    gave a name or not; looking at the files' stamps there costs nothing that matters.
    """
    current = _context(store.current)

    def renew(connection: ssl.SSLObject, _name: str | None, _context_of_listener: ssl.SSLContext) -> None:
        nonlocal current
        renewed = store.renewed()
        if renewed is not None:
            current = _context(renewed)
        connection.context = current

    listener = _context(store.current)
    listener.sni_callback = renew
    return listener


def _context(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # the least that HTTP/2 may use (RFC 9113, 9.2)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["h2"])
    with _file(certificates.chain + b"\n" + certificates.key) as path:
        context.load_cert_chain(path)
    if certificates.client_ca is not None:
        context.load_verify_locations(cadata=certificates.client_ca.decode("ascii", "ignore"))
        context.verify_mode = ssl.CERT_REQUIRED
        context.sslobject_class = _ToldRefusals
    return context


@contextmanager
def _file(content: bytes) -> Iterator[str]:
    """The path of a file, since ``ssl`` loads keys from nothing else.

    In memory where there is such a thing: containers often cannot write anywhere.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("picker-tls", os.MFD_CLOEXEC)
        with open(descriptor, "wb") as memory:  # noqa: PTH123 - a descriptor has no path
            memory.write(content)
            memory.flush()
            yield f"/proc/self/fd/{descriptor}"
    else:
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            yield file.name
