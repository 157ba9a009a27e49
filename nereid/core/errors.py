"""The one tree of errors that Nereid tells its clients, and its mapping to gRPC and HTTP.

Knows no transport: a code is a number of the gRPC status table, which all fronts share. Anything
that is not a NereidError is a bug; the service that meets one logs it and answers INTERNAL_MESSAGE.
"""

from __future__ import annotations

from typing import ClassVar

INTERNAL_MESSAGE = "internal error; the server's log has the cause"


class NereidError(Exception):
    """A failure with a code and a text for the client. The class name is the metric label."""

    code: ClassVar[int] = 2

    def __init__(self, message: str, *, accepted: bool = False) -> None:
        """accepted: the request had been accepted when it failed (HTTP then answers text/plain)."""
        super().__init__(message)
        self.message = message
        self.accepted = accepted


class Cancelled(NereidError):
    """The client gave the request up."""

    code = 1


class Unknown(NereidError):
    """A failure without a better name, such as one that a model raised."""

    code = 2


class InvalidArgument(NereidError):
    """The request itself is wrong; sending it again will not help."""

    code = 3


class DeadlineExceeded(NereidError):
    """The client's deadline passed before the answer was there."""

    code = 4


class NotFound(NereidError):
    """What the request names does not exist."""

    code = 5


class AlreadyExists(NereidError):
    """What the request would create exists."""

    code = 6


class Unimplemented(NereidError):
    """The server does not offer this; Triton calls it UNSUPPORTED."""

    code = 12


class Internal(NereidError):
    """The server or a model failed, or (as on Triton) a request body could not be parsed."""

    code = 13


class Unavailable(NereidError):
    """Not now: no room, no executor, not ready, shutting down. Sending it again may help."""

    code = 14


_BY_CODE: dict[int, type[NereidError]] = {
    cls.code: cls
    for cls in (
        Cancelled,
        Unknown,
        InvalidArgument,
        DeadlineExceeded,
        NotFound,
        AlreadyExists,
        Unimplemented,
        Internal,
        Unavailable,
    )
}

# Triton's table (HttpCodeFromError); what it does not name is 400. It has no deadline of its own.
_HTTP_BY_CODE: dict[int, int] = {
    DeadlineExceeded.code: 504,
    NotFound.code: 404,
    Unimplemented.code: 501,
    Internal.code: 500,
    Unavailable.code: 503,
}


def error_of(code: int, message: str, *, accepted: bool = False) -> NereidError:
    """The error with this gRPC status code; a code outside the tree becomes Unknown."""
    return _BY_CODE.get(code, Unknown)(message, accepted=accepted)


def http_status(code: int) -> int:
    """The HTTP status that goes with a gRPC status code."""
    return _HTTP_BY_CODE.get(code, 400)
