"""All errors that clients may see, with their gRPC and HTTP statuses.

Any exception that is not listed here is a bug. The service that catches one logs it and responds
with INTERNAL_MESSAGE.
"""

from __future__ import annotations

from typing import ClassVar, Final

INTERNAL_MESSAGE = "internal error; the server's log has the cause"
# Triton responds with the same text for models that are asked to stop.
STOPPING_MESSAGE = (
    "Server is stopping, scheduler for model has stopped accepting new inference requests"
)

_MAX_MESSAGE: Final = 65536
_WORKER_LOST: Final = ("Stub process '", "' is not healthy.")


class ProtocolError(Exception):
    """Raised if a service broke the protocol between services.

    The stream ends, and its requests run again. No client sees the error.
    """


class NereidError(Exception):
    """Base class of failures whose text clients see. Metrics use the class's name as a label."""

    code: ClassVar[int]
    # See Unavailable.
    retry_after_ms = 0

    def __init__(self, message: str, *, accepted: bool = False) -> None:
        """Create an error; its text is cut at 65,536 characters.

        If `accepted` is True, the request was valid and failed later. The HTTP response then is
        text/plain.
        """
        if len(message) > _MAX_MESSAGE:
            # Only a text that quotes a client's data can be this long.
            message = message[:_MAX_MESSAGE] + "..."
        super().__init__(message)
        self.message = message
        self.accepted = accepted


class Cancelled(NereidError):
    """The client cancelled the request."""

    code = 1


class Unknown(NereidError):
    """A failure that no other class describes, such as an error that a model raised."""

    code = 2


class InvalidArgument(NereidError):
    """The request is wrong, so a retry will fail as well."""

    code = 3


class DeadlineExceeded(NereidError):
    """The client's deadline passed before the response was ready."""

    code = 4


class NotFound(NereidError):
    """The request names something that does not exist."""

    code = 5


class AlreadyExists(NereidError):
    """The request would create something that exists already."""

    code = 6


class PermissionDenied(NereidError):
    """The client is not permitted to make this request."""

    code = 7


class Aborted(NereidError):
    """The request may have run and must not run twice, so only the client can decide on a retry."""

    code = 10


class Unimplemented(NereidError):
    """The server does not offer this; Triton calls it UNSUPPORTED."""

    code = 12


class Internal(NereidError):
    """The server or a model failed, or a request body could not be parsed (as on Triton)."""

    code = 13


class Unavailable(NereidError):
    """The request cannot be served now: a full queue, no executor, not ready. A retry may help."""

    code = 14

    def __init__(self, message: str, *, accepted: bool = False, retry_after_ms: int = 0) -> None:
        """Create an error; retry_after_ms is 0 if unknown.

        The front ends vary the delay at random, so that clients do not come back all at once.
        """
        super().__init__(message, accepted=accepted)
        self.retry_after_ms = retry_after_ms


class MovedError(Unavailable):
    """Another scheduler has the model. The gateway sends the request there."""


_ERROR_BY_CODE: Final = {cls.code: cls for cls in NereidError.__subclasses__()}

# Triton's table (HttpCodeFromError), plus DeadlineExceeded, PermissionDenied and Aborted. All other
# codes give 400.
_HTTP_STATUS_BY_CODE: Final[dict[int, int]] = {
    DeadlineExceeded.code: 504,
    NotFound.code: 404,
    PermissionDenied.code: 403,
    Aborted.code: 409,
    Unimplemented.code: 501,
    Internal.code: 500,
    Unavailable.code: 503,
}


def worker_lost_message(instance: str) -> str:
    """Return Triton's text for requests whose worker has ended while it executed them."""
    return instance.join(_WORKER_LOST)


def is_worker_lost(message: str) -> bool:
    """Return whether an error has that text; a model that called another one may pass it on."""
    return all(part in message for part in _WORKER_LOST)


def cause_of(error: BaseException) -> str:
    """Return an exception's text, or its type's name if the text is empty."""
    return str(error).strip() or type(error).__name__


def error_from_code(
    code: int, message: str, *, accepted: bool = False, retry_after_ms: int = 0
) -> NereidError:
    """Return the error class with this gRPC status code; Unknown if no class has the code."""
    error = _ERROR_BY_CODE.get(code, Unknown)(message, accepted=accepted)
    if retry_after_ms:
        error.retry_after_ms = retry_after_ms
    return error


def http_status(code: int) -> int:
    """Return the HTTP status for a gRPC status code."""
    return _HTTP_STATUS_BY_CODE.get(code, 400)
