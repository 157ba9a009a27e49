"""Construction of a gateway's console."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid_gateway.extras.console.endpoints import ConsoleEndpoints
from nereid_gateway.extras.console.hub import ConsoleHub
from nereid_gateway.extras.console.look import Observer
from nereid_gateway.extras.console.static_files import package_files, read_files

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nereid.pb import nereid_pb2 as pb
    from nereid_gateway.guards.policy.call_policy import CallPolicy
    from nereid_gateway.plane.data_plane import DataPlane
    from nereid_gateway.plane.slow_requests import SlowRequests


def make_console(  # noqa: PLR0913 (called once)
    data_plane: DataPlane,
    slow_requests: SlowRequests,
    policy: CallPolicy,
    request: pb.MetricsRequest,
    read_own: Callable[[], Awaitable[bytes]],
    *,
    grpc_port: int,
    timeline_seconds: float,
) -> tuple[ConsoleHub, ConsoleEndpoints]:
    """Return the hub of open consoles, and the handlers of the console's routes.

    request: the message that requests the mesh's metrics. read_own: returns the metrics of this
    gateway or its group. grpc_port: 0 if there is none.
    """
    observer = Observer(data_plane, request, read_own)
    hub = ConsoleHub(
        data_plane,
        observer,
        slow_requests,
        grpc_port=grpc_port,
        timeline_seconds=timeline_seconds,
    )
    return hub, ConsoleEndpoints(hub, policy, read_files(package_files()))
