"""A pytest plugin for the integration tests of boto/s3transfer: its client of the AWS common runtime goes where boto3 goes.

That client takes no address of an endpoint from the environment but through its requests, and would speak TLS, with the system's
certificates, to any.
"""

import functools
import os

import s3transfer.crt  # type: ignore[import-untyped]  # it ships no types


def pytest_configure() -> None:
    """Have the client speak the endpoint's protocol and trust its certificate."""
    is_tls = os.environ["AWS_ENDPOINT_URL_S3"].startswith("https:")
    s3transfer.crt.create_s3_crt_client = functools.partial(
        s3transfer.crt.create_s3_crt_client, use_ssl=is_tls, verify=os.environ.get("AWS_CA_BUNDLE")
    )
