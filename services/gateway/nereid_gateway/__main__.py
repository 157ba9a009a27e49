"""Gateway in its own process: `python -m nereid_gateway`."""

from __future__ import annotations

# This import comes before imports that a file in the working directory could replace.
import nereid.safe_path  # isort: split

import asyncio
import errno
import logging
import os
import sys
from functools import partial
from typing import TYPE_CHECKING

import nereid.process.uncollected  # noqa: F401 - before all that it is for
from nereid.mesh_auth.roles import Role
from nereid.mesh_routing.access import OneScheduler, dial_scheduler
from nereid.process.gateway_group import read_group
from nereid.process.inherited_ports import read_ports
from nereid.process.service_process import StartError, finish_start, run_service
from nereid.process.standby import stand_by
from nereid.rpc import ChannelOptions, SocketChannel
from nereid.rpc.net.scheduler_addresses import only_address, parse_addresses
from nereid.shm.segments import shm_namespace
from nereid_gateway import settings as gateway_settings
from nereid_gateway.service import GatewayService

if TYPE_CHECKING:
    from nereid.mesh_routing.access import MeshAccess
    from nereid.process.gateway_group import GatewayGroup
    from nereid.process.service_process import Shutdown
    from nereid.rpc.net.shared_ports import InheritedPorts
    from nereid_gateway.settings import GatewaySettings

_log = logging.getLogger(__name__)


async def serve(
    ports: InheritedPorts | None,
    group: GatewayGroup | None,
    settings: GatewaySettings,
    shutdown: Shutdown,
) -> int:
    """Serve until shutdown is requested; return the exit code."""
    domain = shm_namespace(settings.shm_limit_bytes)
    has_access_control = bool(settings.auth_config)
    address = only_address(settings.scheduler_address)
    mesh: MeshAccess
    if address is not None:
        channel = _open_channel(settings, address, replaceable=False)
        open_link = dial_scheduler(channel, domain, has_access_control=has_access_control)
        mesh, close = OneScheduler(open_link, channel), channel.close
    else:
        # Most gateways connect to a single scheduler.
        from nereid.mesh_routing.several.scheduler_channels import SchedulerChannels  # noqa: PLC0415

        specs = parse_addresses(settings.scheduler_address)
        open_channel = partial(_open_channel, settings, replaceable=True)
        several = SchedulerChannels(
            specs, open_channel, domain, has_access_control=has_access_control
        )
        mesh, close = several, several.close
    service = GatewayService(settings, mesh=mesh, ports=ports, group=group)
    try:
        await _start(service)
        finishing = asyncio.create_task(finish_start(service.import_deferred))
        await shutdown.wait()
        finishing.cancel()
        await service.drain(settings.exit_timeout_secs)
    finally:
        await close()
    return 0


def _open_channel(settings: GatewaySettings, address: str, *, replaceable: bool) -> SocketChannel:
    options = settings.with_keepalive(ChannelOptions(), replaceable=replaceable)
    return SocketChannel(address, settings.mesh_channel(address, Role.GATEWAY, options))


async def _start(service: GatewayService) -> None:
    try:
        await service.start()
    except OSError as error:
        other = " (--http-port, --grpc-port and --metrics-port choose others)"
        hint = other if error.errno == errno.EADDRINUSE else ""
        raise StartError(f"cannot listen: {error}{hint}") from error
    _log.info("open %s", service.exposure())


def main() -> int:
    """Run the process and return its exit code."""
    stand_by(os.environ)
    settings = gateway_settings.read()
    ports, group = read_ports(os.environ), read_group(os.environ)
    name = "gateway" if group is None else f"gateway-{group.number}"
    serve_all = partial(serve, ports, group)
    return run_service(settings, serve_all, name=name, program=gateway_settings.PROGRAM)


if __name__ == "__main__":
    sys.exit(main())
