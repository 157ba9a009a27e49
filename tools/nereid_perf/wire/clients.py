"""Chooses the client that a plan needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid_perf.wire.grpc_client import GrpcClient
from nereid_perf.wire.grpc_stream_client import GrpcStreamClient
from nereid_perf.wire.http_client import HttpClient

if TYPE_CHECKING:
    from nereid_perf.plan import Plan
    from nereid_perf.wire.client import OnEnd, WireClient


def new_client(plan: Plan, on_end: OnEnd) -> WireClient:
    """Return the client for a plan; raise OSError if a TLS file cannot be used."""
    if plan.endpoint.protocol == "http":
        return HttpClient(plan, on_end)
    return GrpcStreamClient(plan, on_end) if plan.streaming else GrpcClient(plan, on_end)
