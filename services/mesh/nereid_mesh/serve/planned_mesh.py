"""Runs a planned mesh: supervises its children, and prints the greeting once they are ready."""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nereid.observability.logging import set_up_logging
from nereid.process.gateway_group import group_environ
from nereid.process.inherited_ports import ports_environ
from nereid.rpc.net.dialing import connect
from nereid.rpc.net.shared_ports import SharedPorts
from nereid_mesh.serve.service_manager import READY, STOPPING, ServiceManager
from nereid_mesh.serve.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nereid.core.files.temporary_directories import TemporaryDirectory
    from nereid_mesh.serve.child_process import StandbyProcess
    from nereid_mesh.serve.plan import ChildSpec, Plan

_START_ERROR_CODE = 2
_LISTENING_INTERVAL_S = 0.05
_CONNECT_S = 5.0
_GREETING_PAUSE_S = 0.3


def run_plan(plan: Plan, early: list[StandbyProcess], directory: TemporaryDirectory) -> int:
    """Run a mesh until a signal arrives; return the exit code. Used standbys leave `early`."""
    set_up_logging(plan.log, "nereid")
    # The children may drain after this process was killed, so they keep the directory in use.
    shared = directory.share()
    plan = replace(
        plan,
        children=tuple(
            replace(child, descriptors=(*child.descriptors, shared)) for child in plan.children
        ),
    )
    standbys = match_standbys(plan.children, early)
    while early:
        early.pop().kill()
    try:
        return asyncio.run(_serve(plan, standbys))
    finally:
        for standby in standbys.values():
            standby.kill()


def match_standbys(
    children: Sequence[ChildSpec], early: list[StandbyProcess]
) -> dict[str, StandbyProcess]:
    """Return the early process that fits each child, and remove it from `early`."""
    standbys = {}
    for child in children:
        for standby in early:
            if child.argv[: len(standby.argv)] == standby.argv:
                standbys[child.name] = standby
                early.remove(standby)
                break
    return standbys


async def _serve(plan: Plan, standbys: Mapping[str, StandbyProcess]) -> int:
    ports = SharedPorts(len(plan.gateways))
    try:
        addresses = {
            name: await ports.bind(name, edge.address, reuse_port=edge.is_reused)
            for name, edge in plan.edges.items()
            if edge.is_inherited
        }
    except OSError as error:
        ports.close()
        sys.stderr.write(f"nereid serve: cannot listen: {error}\n")
        return _START_ERROR_CODE
    try:
        plan = _with_ports(plan, addresses, ports)
        return await _supervise(plan, _HeldPorts(plan.gateways, ports, plan.unserved_s), standbys)
    finally:
        ports.close()


def _with_ports(plan: Plan, addresses: dict[str, str], ports: SharedPorts) -> Plan:
    environs = {name: ports_environ(ports, number) for number, name in enumerate(plan.gateways)}
    size = len(plan.gateways)
    if size > 1:
        Path(plan.group_directory).mkdir(mode=0o700)
        for number, name in enumerate(plan.gateways):
            environs[name] |= group_environ(number, size, plan.group_directory)
    children = tuple(
        replace(
            child,
            environ=environs[child.name],
            descriptors=(*child.descriptors, *ports.descriptors),
        )
        if child.name in environs
        else child
        for child in plan.children
    )
    edges = {
        name: edge._replace(address=addresses.get(name, edge.address))
        for name, edge in plan.edges.items()
    }
    return replace(plan, children=children, edges=edges)


class _HeldPorts:
    """Ports that keep clients waiting, for a limited time, while no gateway serves them."""

    def __init__(self, gateways: tuple[str, ...], ports: SharedPorts, limit_s: float) -> None:
        self._gateways = gateways
        self._limit_s = limit_s
        self._ports = ports
        self._refusal: asyncio.TimerHandle | None = None

    def on_ended(self, child: ChildSpec) -> None:
        """Handle the end of a child's process; the child may be a gateway."""
        if child.name in self._gateways:
            self._ports.on_member_ended(self._gateways.index(child.name))
            self._cancel_refusal()
            loop = asyncio.get_running_loop()
            self._refusal = loop.call_later(self._limit_s, self._ports.refuse_unserved)

    def close(self) -> None:
        """Make the ports refuse connections once the last gateway stops accepting."""
        self._cancel_refusal()
        self._ports.close()

    def _cancel_refusal(self) -> None:
        if self._refusal is not None:
            self._refusal.cancel()
            self._refusal = None


async def _supervise(
    plan: Plan, held_ports: _HeldPorts, standbys: Mapping[str, StandbyProcess]
) -> int:
    # Before the children get the environment.
    manager = ServiceManager()
    supervisor = Supervisor(plan.children, plan.supervision, held_ports.on_ended, standbys)

    def stop() -> None:
        manager.notify(STOPPING)
        held_ports.close()
        supervisor.stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    greeter = asyncio.create_task(_greet(plan, manager))
    code = await supervisor.run()
    greeter.cancel()
    await asyncio.gather(greeter, return_exceptions=True)
    return code


async def _greet(plan: Plan, manager: ServiceManager) -> None:
    addresses = plan.addresses
    address = addresses.get("http")
    if address is not None and not plan.https:
        await _until_listening(address)
        # The first models are loading at this time.
        await asyncio.sleep(_GREETING_PAUSE_S)
    # This takes a third of the time of all other imports, so the services import first.
    from nereid_mesh.serve.greeting import ClientAccess, greet, loaded_models  # noqa: PLC0415
    from nereid_mesh.serve.mesh_models import MeshModels  # noqa: PLC0415

    access = ClientAccess(plan.https, plan.needs_key, plan.console, plan.openai)
    async with MeshModels(plan.scheduler, plan.credentials) as mesh:
        models = await loaded_models(mesh)
        manager.notify(READY)
        if address is not None:
            await greet(models, addresses, mesh, access)


async def _until_listening(address: str) -> None:
    """Wait until a server listens at an address, which may stand for all interfaces."""
    while True:
        try:
            connected = await asyncio.to_thread(connect, address, _CONNECT_S)
        except OSError:
            await asyncio.sleep(_LISTENING_INTERVAL_S)
        else:
            connected.close()
            return
