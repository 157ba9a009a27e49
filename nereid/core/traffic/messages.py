"""Traffic in messages between services."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.core.traffic.weights import Traffic, make_traffic

if TYPE_CHECKING:
    from nereid.pb import nereid_pb2 as pb


def traffic_of(message: pb.Traffic) -> Traffic:
    """Return the traffic in a message. Raises ValueError with the reason."""
    return make_traffic(dict(message.weights), message.by)


def write_traffic(traffic: Traffic, message: pb.Traffic) -> None:
    """Write traffic into a message."""
    message.weights.update(traffic.weights)
    message.by = traffic.by
