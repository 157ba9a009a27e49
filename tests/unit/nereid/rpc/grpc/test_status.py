"""Statuses, and what HTTP's mean."""

from __future__ import annotations

from nereid.rpc.grpc.status import RpcError, Status, status_of_http, status_of_reset


def test_statuses() -> None:
    assert status_of_reset(7) == Status.UNAVAILABLE
    assert status_of_reset(2) == Status.INTERNAL
    assert status_of_http(503) == Status.UNAVAILABLE
    assert status_of_http(200) == Status.UNKNOWN
    error = RpcError(Status.ABORTED, "why", [("a", "b")])
    assert str(error) == "ABORTED: why"
    assert error.trailers == (("a", "b"),)
