"""gRPC status codes and the one exception of this package.

Knows how HTTP/2 error codes and HTTP statuses translate to gRPC's, and nothing of services.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nereid.rpc.net.limits.budget import OverBudgetError


class Status(IntEnum):
    """gRPC's status codes."""

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
    """A call that ended with a status other than OK, on either side."""

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
    """The peer did not process the call (GOAWAY, REFUSED_STREAM): it is safe to retry."""


class NotConnectedError(RpcError):
    """There is no connection at the moment.

    The message names the peer's address: do not show it to clients.
    """


class ConnectionLostError(RpcError):
    """The connection ended while the call was pending.

    Whether the peer has carried out the call is unknown.
    """


# Status of a stream reset with an HTTP/2 error code (gRPC over HTTP/2, "Errors").
_OF_RESET = {
    0x7: Status.UNAVAILABLE,
    0x8: Status.CANCELLED,
    0xB: Status.RESOURCE_EXHAUSTED,
    0xC: Status.PERMISSION_DENIED,
}

# Status of a response without grpc-status, by its HTTP status (gRPC, "HTTP to gRPC Status Code
# Mapping").
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
    """Return the gRPC status of a stream reset with an HTTP/2 error code."""
    return _OF_RESET.get(code, Status.INTERNAL)


def status_of_http(http_status: int) -> Status:
    """Return the gRPC status of a response that has only an HTTP status."""
    return _OF_HTTP.get(http_status, Status.UNKNOWN)


def status_of_over_budget(error: OverBudgetError) -> Status:
    """Return the status of a call whose bytes exceed a limit.

    A limit that all clients share gives UNAVAILABLE, because its bytes may soon be free.
    """
    return Status.UNAVAILABLE if error.shared else Status.RESOURCE_EXHAUSTED
