"""What tests of the gateway's edge ask for: a running gateway, TLS files, both event loops."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
import uvloop

from gateway.tls import server_context
from tests.fakes.certificate import make_certificate
from tests.fakes.gateway import RunningGateway, running_gateway

LOOPS: Mapping[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def pytest_asyncio_loop_factories(
    config: pytest.Config,  # noqa: ARG001  # pytest passes by name
    item: pytest.Item,  # noqa: ARG001
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run each asynchronous test of this directory on both loops."""
    return LOOPS


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    """A gateway with one empty bucket, `bucket`."""
    async with running_gateway(str(tmp_path / "access.log")) as running:
        running.store.make_bucket("bucket")
        yield running


@pytest.fixture(scope="session")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for localhost and its key."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def tls_contexts(tls_files: tuple[Path, Path]) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context as the gateway makes it, and a client's that trusts it."""
    return server_context(*tls_files), ssl.create_default_context(cafile=str(tls_files[0]))
