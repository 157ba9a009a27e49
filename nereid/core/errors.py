"""The one tree of errors that clients may see, and its mappings to gRPC and HTTP statuses.

Knows no transport: a code is a number of the gRPC status table. Any other exception is a bug; the
service that catches one logs it and responds with INTERNAL_MESSAGE.
"""

from __future__ import annotations

from typing import ClassVar, Final

INTERNAL_MESSAGE = "internal error; the server's log has the cause"
# Message of a stopping gateway or scheduler; Triton's models respond with it when they are asked to
# stop.
STOPPING_MESSAGE = (
    "Server is stopping, scheduler for model has stopped accepting new inference requests"
)

_MAX_MESSAGE: Final = 65536


class ProtocolError(Exception):
    """A service sent what the protocol between services excludes.

    Its stream ends for it. Requests in flight there run again, and no client sees the error.
    """


class NereidError(Exception):
    """A failure with a text for the client.

    The class name is the metric label.
    """

    # The gRPC status code.
    code: ClassVar[int]
    # Delay before a retry, see Unavailable; 0 for all other errors.
    retry_after_ms = 0

    def __init__(self, message: str, *, accepted: bool = False) -> None:
        """Create an error; its text is cut at 65,536 characters.

        accepted: whether the request was valid and failed later (HTTP then responds with
            text/plain).
        """
        if len(message) > _MAX_MESSAGE:
            # A text this long quotes the client.
            message = message[:_MAX_MESSAGE] + "..."
        super().__init__(message)
        self.message = message
        self.accepted = accepted


class Cancelled(NereidError):
    """The client cancelled the request."""

    code = 1


class Unknown(NereidError):
    """A failure without a better name, such as one that a model raised."""

    code = 2


class InvalidArgument(NereidError):
    """The request itself is wrong; a retry will not help."""

    code = 3


class DeadlineExceeded(NereidError):
    """The client's deadline passed before there was a response."""

    code = 4


class NotFound(NereidError):
    """The request names something that does not exist."""

    code = 5


class AlreadyExists(NereidError):
    """The request would create something that exists already."""

    code = 6


class PermissionDenied(NereidError):
    """The client has no right to this."""

    code = 7


class Aborted(NereidError):
    """The request may have run, and must not run twice: only the client can decide."""

    code = 10


class Unimplemented(NereidError):
    """The server does not offer this; Triton calls it UNSUPPORTED."""

    code = 12


class Internal(NereidError):
    """The server or a model failed, or (as on Triton) a request body could not be parsed."""

    code = 13


class Unavailable(NereidError):
    """A full queue, no executor, not ready, shutting down. A retry may help."""

    code = 14

    def __init__(self, message: str, *, accepted: bool = False, retry_after_ms: int = 0) -> None:
        """Create an error after which a retry may succeed.

        retry_after_ms: when a retry may find a place; 0 if unknown. Fronts spread it, so that
            clients do not come back all at once.
        """
        super().__init__(message, accepted=accepted)
        self.retry_after_ms = retry_after_ms


class MovedError(Unavailable):
    """Another scheduler has the model, or is going to have it.

    The request is to be sent there; this is no error of the request.
    """


# Errors by gRPC status code; each direct subclass above has a code of its own.
_ERROR_BY_CODE: Final = {cls.code: cls for cls in NereidError.__subclasses__()}

# HTTP statuses by gRPC status code: Triton's table (HttpCodeFromError), in which all others are
# 400, and three that Triton does not have: DeadlineExceeded, PermissionDenied and Aborted.
_HTTP_STATUS_BY_CODE: Final[dict[int, int]] = {
    DeadlineExceeded.code: 504,
    NotFound.code: 404,
    PermissionDenied.code: 403,
    Aborted.code: 409,
    Unimplemented.code: 501,
    Internal.code: 500,
    Unavailable.code: 503,
}


def cause_of(error: BaseException) -> str:
    """Return the text of a foreign exception, for quoting; its type if it has no text."""
    return str(error).strip() or type(error).__name__


def error_from_code(
    code: int, message: str, *, accepted: bool = False, retry_after_ms: int = 0
) -> NereidError:
    """Return the error with this gRPC status code; Unknown for a code outside the tree."""
    error = _ERROR_BY_CODE.get(code, Unknown)(message, accepted=accepted)
    if retry_after_ms:
        error.retry_after_ms = retry_after_ms
    return error


def http_status(code: int) -> int:
    """Return the HTTP status for a gRPC status code."""
    return _HTTP_STATUS_BY_CODE.get(code, 400)
