"""A fake origin whose answers can be held back at a gate: computed already, and waiting to be sent, whole or from some byte on."""

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass, field

from aiohttp import web

from tests.fakes.origin_faults import Fault
from tests.fakes.origin_server import FakeOrigin
from tests.fakes.origin_store import Reply

_gate: ContextVar["Gate | None"] = ContextVar("_gate", default=None)


@dataclass(slots=True)
class Gate:
    """Holds back one answer to `method` on `bucket/key`: after `after_bytes` of its body, or before its head where that is -1."""

    method: str
    path: str
    after_bytes: int = -1
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    _opened: asyncio.Event = field(default_factory=asyncio.Event)

    def open(self) -> None:
        """Let the answer go on."""
        self._opened.set()

    async def pass_through(self) -> None:
        """Say that the answer has come so far, and wait."""
        self.reached.set()
        await self._opened.wait()


class PausedOrigin(FakeOrigin):
    """A FakeOrigin with gates. What a held answer says was true when the request arrived."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(port)
        self._gates: list[Gate] = []

    def hold(self, method: str, path: str, after_bytes: int = -1) -> Gate:
        """Hold back the next answer to `method` on `bucket/key` ("*": any) at a gate."""
        gate = Gate(method, path, after_bytes)
        self._gates.append(gate)
        return gate

    async def __aexit__(self, *_: object) -> None:
        for gate in self._gates:
            gate.open()
        await super().__aexit__(*_)

    async def _send(
        self, request: web.BaseRequest, reply: Reply, fault: Fault
    ) -> tuple[web.StreamResponse, int]:
        path = request.raw_path.partition("?")[0].removeprefix("/")
        gate = next((g for g in self._gates if g.method == request.method and g.path in {path, "*"}), None)
        if gate is not None and not gate.reached.is_set():
            self._gates.remove(gate)
            if gate.after_bytes < 0:
                await gate.pass_through()
            else:
                _gate.set(gate)
        return await super()._send(request, reply, fault)

    async def _send_body(self, response: web.StreamResponse, body: bytes, fault: Fault) -> None:
        gate = _gate.get()
        _gate.set(None)
        if gate is None:
            await super()._send_body(response, body, fault)
            return
        await super()._send_body(response, body[: gate.after_bytes], fault)
        await gate.pass_through()
        await super()._send_body(response, body[gate.after_bytes :], fault)
