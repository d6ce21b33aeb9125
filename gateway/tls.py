"""The TLS side of the listener: one context from a certificate and its key."""

import ssl
from pathlib import Path


class CertificateError(Exception):
    """The certificate or its key cannot be used; the operator has to change `tls_cert` or `tls_key`."""


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
