"""Tests of the gateway's edge run on the loop that serves (uvloop) and on asyncio's own."""

from tests.fakes.gateway_fixtures import gateway, pytest_asyncio_loop_factories, tls_contexts, tls_files

__all__ = ["gateway", "pytest_asyncio_loop_factories", "tls_contexts", "tls_files"]
