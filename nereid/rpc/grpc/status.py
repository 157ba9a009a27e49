"""Status codes of gRPC, and the exceptions of this package."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nereid.rpc.net.limits.budget import OverBudgetError


class Status(IntEnum):
    """Status codes of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class RpcError(Exception):
    """Raised for a call that ended with a status other than OK, on the client or server."""

    def __init__(
        self,
        status: Status,
        message: str = "",
        trailers: Iterable[tuple[str, str | bytes]] = (),
    ) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message
        self.trailers = tuple(trailers)

    def __str__(self) -> str:
        return f"{self.status.name}: {self.message}" if self.message else self.status.name


class NotProcessedError(RpcError):
    """Raised if the peer did not process the call, so a retry is safe (GOAWAY, REFUSED_STREAM)."""


class NotConnectedError(RpcError):
    """Raised if there is no connection. The message has the address: do not show it to clients."""


class ConnectionLostError(RpcError):
    """Raised if the connection was lost. The peer may have processed the call."""


# HTTP/2 error code -> status (gRPC over HTTP/2, "Errors").
_OF_RESET = {
    0x7: Status.UNAVAILABLE,
    0x8: Status.CANCELLED,
    0xB: Status.RESOURCE_EXHAUSTED,
    0xC: Status.PERMISSION_DENIED,
}

# HTTP status without grpc-status -> status (gRPC, "HTTP to gRPC Status Code Mapping").
_OF_HTTP = {
    400: Status.INTERNAL,
    401: Status.UNAUTHENTICATED,
    403: Status.PERMISSION_DENIED,
    404: Status.UNIMPLEMENTED,
    429: Status.UNAVAILABLE,
    502: Status.UNAVAILABLE,
    503: Status.UNAVAILABLE,
    504: Status.UNAVAILABLE,
}


def status_of_reset(code: int) -> Status:
    """Return the gRPC status for a stream that was reset with an HTTP/2 error code."""
    return _OF_RESET.get(code, Status.INTERNAL)


def status_of_http(http_status: int) -> Status:
    """Return the gRPC status for a response that has only an HTTP status."""
    return _OF_HTTP.get(http_status, Status.UNKNOWN)


def status_of_over_budget(error: OverBudgetError) -> Status:
    """Return the status for bytes over a limit; UNAVAILABLE if all clients share the limit."""
    return Status.UNAVAILABLE if error.shared else Status.RESOURCE_EXHAUSTED
