"""The TLS side of the listener: one context from a certificate and its key, which can be exchanged while it serves.

New connections get the new pair, those that are there go on with theirs. The files are read once, so that the pair that
was checked is the pair that is used, however they are being rewritten meanwhile.
"""

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path


class CertificateError(Exception):
    """The certificate or its key cannot be used; the operator has to change `tls_cert` or `tls_key`."""


@dataclass(frozen=True, slots=True)
class CertificatePair:
    """A certificate chain and its key as PEM, which belong together."""

    chain: bytes
    key: bytes = field(repr=False)


def read_pair(certificate: Path, key: Path) -> CertificatePair:
    """Read a certificate and its key at one moment, and check them. Blocks.

    Raises:
        CertificateError: As `server_context`.
    """
    try:
        pair = CertificatePair(certificate.read_bytes(), key.read_bytes())
        use_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), pair)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise CertificateError(f"tls_cert {certificate}, tls_key {key}: {error}") from error
    return pair


def use_pair(context: ssl.SSLContext, pair: CertificatePair) -> None:
    """Let a context use this pair for every connection from here on.

    Raises:
        OSError, ssl.SSLError, ValueError: It is none; `read_pair` gives none that is so.
    """
    # The ssl module takes paths only; the bytes never touch a disk.
    with _in_memory(pair.chain) as chain, _in_memory(pair.key) as key:
        context.load_cert_chain(chain, key, password=_refuse_password)


@contextmanager
def _in_memory(data: bytes) -> Iterator[str]:
    """Give a path under which the process can read these bytes while the block lasts."""
    with open(os.memfd_create("forebay-tls"), "wb", buffering=0) as file:  # noqa: PTH123  # a descriptor, no path
        file.write(data)
        yield f"/proc/self/fd/{file.fileno()}"


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Make the context of the listener: TLS 1.2 or newer, HTTP/1.1 only (all that S3 clients speak).

    Args:
        certificate: PEM file with the certificate and the chain behind it.
        key: PEM file with its private key, not encrypted.

    Raises:
        CertificateError: A file cannot be read, is no PEM, or the two do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # A renegotiation costs the server far more than the client who asks for it.
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        context.load_cert_chain(certificate, key, password=_refuse_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise CertificateError(f"tls_cert {certificate}, tls_key {key}: {error}") from error
    return context


def _refuse_password() -> str:
    raise ValueError("the key is encrypted; give one without a passphrase")
