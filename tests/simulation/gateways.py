"""The gateways of a simulated mesh: their path to the schedulers is the real one, from the upstream
step of the data plane on. Clients reach it over links that break when it ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.config.recovery import DEFAULT_TIMES
from nereid.mesh_routing.access import OneScheduler, dial_scheduler
from nereid.mesh_routing.several.scheduler_channels import SchedulerChannels
from nereid.rpc.net.limits.budget import BudgetLimits, ByteBudget
from nereid.rpc.net.scheduler_addresses import AddressSpec
from nereid_gateway.core.tensors.tensor_memory import TensorMemory
from nereid_gateway.plane.control.control import Control
from nereid_gateway.plane.upstream import Limits, Upstream
from tests.simulation.network import Wire
from tests.simulation.processes import Process

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from nereid.core.wire.messages import InferResponse
    from nereid.mesh_routing.access import MeshAccess
    from nereid.rpc import Channel
    from nereid_gateway.core.client_request import ClientRequest
    from nereid_gateway.core.request_handle import RequestHandle
    from tests.simulation.surroundings import Surroundings

_MAX_PENDING = 4096
_BYTES = 1 << 28
_REPLACEABLE_S = DEFAULT_TIMES.peer_ping_after_s, DEFAULT_TIMES.peer_ping_reply_s
_ALONE_S = DEFAULT_TIMES.ping_after_s, DEFAULT_TIMES.ping_reply_s
_EXIT_S = 5.0
CLIENTS = "clients"


class GatewayHost:
    """One of the gateways; process after process."""

    def __init__(self, where: Surroundings, name: str, clients: Process) -> None:
        self._where = where
        self.name = name
        self._clients = clients
        self.process: Process | None = None
        self.gateway: Gateway | None = None

    def start(self) -> None:
        """Another process begins."""
        process = self.process = self._where.start_process(self.name)
        loop = self._where.loop
        self.gateway = loop.run_in(process, Gateway, self._where, process, self._clients)

    def on_kill(self) -> None:
        """Its process was killed: clients see that."""
        gateway, self.gateway = self.gateway, None
        if gateway is not None:
            gateway.break_off(lossy=self._where.random.random() < 0.5)

    def terminate(self) -> asyncio.Task[None] | None:
        """SIGTERM: it drains, and ends. Clients go elsewhere meanwhile."""
        gateway, self.gateway = self.gateway, None
        if gateway is None or self.process is None:
            return None
        return self._where.loop.spawn(self.process, gateway.drain())


class Gateway:
    """One process."""

    def __init__(self, where: Surroundings, process: Process, clients: Process) -> None:
        self._where = where
        self._process = process
        several = len(where.addresses) > 1
        keepalive_s = _REPLACEABLE_S if several else _ALONE_S

        def open_channel(address: str) -> Channel:
            return where.open_channel(process, address, keepalive_s=keepalive_s)

        self._mesh: MeshAccess
        if several:
            specs = [AddressSpec(each) for each in where.addresses]
            self._mesh = SchedulerChannels(specs, open_channel)
        else:
            channel = open_channel(where.addresses[0])
            self._mesh = OneScheduler(dial_scheduler(channel), channel)
        restart_s = DEFAULT_TIMES.restart_s
        limits = BudgetLimits(total_bytes=_BYTES, client_bytes=_BYTES, connection_bytes=_BYTES)
        self._upstream = Upstream(
            self._mesh, Limits(_MAX_PENDING, restart_s), TensorMemory(0), ByteBudget(limits)
        )
        self.control = Control(self._mesh, restart_s, restart_s)
        self._upstream.start()
        self._up = Wire(where.network, clients, process)
        self._down = Wire(where.network, process, clients)
        # By client's number: what it waits for, with what it is told when the connection breaks.
        self._open: dict[int, tuple[Callable[[InferResponse], None], Callable[[], None]]] = {}
        self._handles: dict[int, RequestHandle] = {}
        self._ended = False

    # ---- the clients' end

    def infer(
        self,
        number: int,
        request: ClientRequest,
        on_response: Callable[[InferResponse], None],
        on_broken: Callable[[], None],
    ) -> None:
        """A client sends a request. on_broken: in place of further responses."""
        if self._ended:
            self._where.loop.call_soon(on_broken)
            return
        self._open[number] = on_response, on_broken
        self._up.send(lambda: self._submit(number, request))

    def cancel(self, number: int) -> None:
        """The client of a request gives it up."""
        if self._open.pop(number, None) is not None:
            self._up.send(lambda: self._cancel(number))

    def break_off(self, *, lossy: bool) -> None:
        """The connections to clients break; lossy: with responses that were on their way."""
        self._ended = True
        if lossy:
            self._down.cut()
        self._down.send(self._on_broken)

    def _on_broken(self) -> None:
        opened, self._open = self._open, {}
        for _, on_broken in opened.values():
            on_broken()

    def _deliver(self, number: int, response: InferResponse) -> None:
        opened = self._open.get(number)
        if opened is None:
            return
        if not response.more:
            del self._open[number]
        opened[0](response)

    # ---- the gateway's end

    def _submit(self, number: int, request: ClientRequest) -> None:
        def on_response(response: InferResponse) -> None:
            if not response.more:
                self._handles.pop(number, None)
                done.append(number)
            self._down.send(lambda: self._deliver(number, response))

        done: list[int] = []
        handle = self._upstream.infer(request, on_response)
        if not done:
            self._handles[number] = handle

    def _cancel(self, number: int) -> None:
        handle = self._handles.pop(number, None)
        if handle is not None:
            handle.cancel()

    async def drain(self) -> None:
        """Finish what is pending, then close."""
        await self._upstream.drain(_EXIT_S)
        self._upstream.close()
        self.break_off(lossy=False)
