"""The TLS listener with a real certificate."""

import asyncio
import ssl
from pathlib import Path

import pytest

from gateway.tls import CertificateError, read_pair, server_context, use_pair
from tests.fakes.engine import FakeStore
from tests.fakes.gateway import in_thread, running_gateway


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
async def test_boto3_uses_a_trailer_when_it_speaks_tls(
    tmp_path: Path, tls_contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    """Over TLS boto3 sends STREAMING-UNSIGNED-PAYLOAD-TRAILER; the object is the payload alone."""
    store = FakeStore()
    store.make_bucket("bucket")
    data = bytes(range(256)) * 5000
    async with running_gateway(str(tmp_path / "log"), store=store, tls=tls_contexts[0]) as gateway:
        client = gateway.client()

        await in_thread(client.put_object, Bucket="bucket", Key="key", Body=data)
        got = await in_thread(client.get_object, Bucket="bucket", Key="key")
        body = await in_thread(got["Body"].read)

    assert store.data("bucket", "key") == body == data
    assert "content-encoding" not in dict(store.record("bucket", "key").headers)


async def test_http_1_1_is_chosen_when_a_client_offers_more(
    tmp_path: Path, tls_contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    """HTTP/2 is not offered, and old TLS not spoken."""
    server, client = tls_contexts
    client.set_alpn_protocols(["h2", "http/1.1"])
    async with running_gateway(str(tmp_path / "log"), tls=server) as gateway:
        _, writer = await asyncio.open_connection(
            "127.0.0.1", gateway.port, ssl=client, server_hostname="localhost"
        )
        chosen = writer.get_extra_info("ssl_object").selected_alpn_protocol()
        writer.close()

    assert chosen == "http/1.1"
    assert server.minimum_version is ssl.TLSVersion.TLSv1_2


def test_a_pair_is_read_at_one_moment_and_used_as_it_was_read(
    tmp_path: Path, tls_files: tuple[Path, Path]
) -> None:
    """What is written over the files between reading and use does not matter; the key is in no repr."""
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificate.write_bytes(tls_files[0].read_bytes())
    key.write_bytes(tls_files[1].read_bytes())
    pair = read_pair(certificate, key)
    key.write_text("being rewritten")

    use_pair(server_context(*tls_files), pair)

    assert "PRIVATE" not in repr(pair)
    with pytest.raises(CertificateError, match="tls_cert"):
        read_pair(certificate, key)


def test_certificate_error_when_a_file_is_no_certificate(
    tmp_path: Path, tls_files: tuple[Path, Path]
) -> None:
    """A wrong, missing or foreign file is named in one line."""
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")

    for pair in ((nonsense, tls_files[1]), (tmp_path / "none", tls_files[1]), (tls_files[0], nonsense)):
        with pytest.raises(CertificateError, match="tls_cert"):
            server_context(*pair)
