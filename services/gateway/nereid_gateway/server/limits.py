"""Limits of one HTTP connection, and the exception that rejects a request beyond a limit."""

# layout: not compiled, off the hot path

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nereid.rpc.net.limits.stall_detection import NO_UPLOAD_LIMITS, UploadLimits

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid_gateway.server.call import HttpCall

# Bytes of a chunk's size line and both line ends, with the number of digits that clients usually
# write.
_CHUNK_FRAMING_BYTES = 20
# Status of a call whose body is too large, if its errors have a form of their own.
CONTENT_TOO_LARGE: Final = 413


class RequestRejected(Exception):
    """Raised to reject a request. It stops the parser, so that no more of the request is read."""

    def __init__(self, status: int, message: str, extra: bytes = b"") -> None:
        """extra: further header lines, each with its CRLF."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.extra = extra


def _body_too_large(_: HttpCall, size: int, limit: int) -> str:
    return f"request body of {size} bytes exceeds the limit of {limit} bytes"


@dataclass(frozen=True)
class HttpLimits:
    """Limits on sizes, counts and times. A connection that exceeds one is refused or closed."""

    max_body_bytes: int
    max_header_bytes: int = 65536
    max_chunks: int = 65536
    max_pipelined: int = 32
    # A client with more unread bytes of a streamed response is disconnected at the next chunk.
    max_unsent_bytes: int = 1 << 26
    # Limit from a request's first byte to the end of its headers.
    header_timeout_s: float = 30.0
    # At least one byte of a body must arrive in this time.
    body_timeout_s: float = 30.0
    upload: UploadLimits = NO_UPLOAD_LIMITS
    # A connection without a request is closed after this time.
    idle_timeout_s: float = 600.0
    # A client that reads no response for this long is disconnected. None means never.
    write_timeout_s: float | None = 60.0
    # A few connections beyond this limit get status 503. Further connections are aborted.
    max_connections: int = 32768
    # A client is what nereid.rpc.net.address.client_of returns.
    max_client_connections: int | None = None
    # The rest of a rejected request is read and dropped for this long. Unread bytes would reset the
    # connection before the client has read the response.
    linger_s: float = 2.0
    # Time from a client's FIN to the first probe, and between probes.
    probe_delay_s: float = 0.25
    probe_interval_s: float = 1.0
    # Time between checks of all connections for the timeouts above.
    sweep_interval_s: float = 1.0
    # Called with a call, the size of its body, and the limit that this exceeds. Returns the error's
    # text; empty if this call's body may be as large.
    body_too_large: Callable[[HttpCall, int, int], str] = _body_too_large

    def silence_s(self, *, in_headers: bool) -> float:
        """Return how long a client may pause within a request."""
        return self.header_timeout_s if in_headers else self.body_timeout_s

    def check_body(self, call: HttpCall, size: int) -> None:
        """Reject a body that is too large."""
        if size > self.max_body_bytes:
            message = self.body_too_large(call, size, self.max_body_bytes)
            if message:
                raise RequestRejected(CONTENT_TOO_LARGE, message)

    def check_framing(self, size: int, chunks: int) -> None:
        """Reject a body with too much framing: chunk extensions and trailers. size: bytes."""
        if size > self.max_header_bytes + _CHUNK_FRAMING_BYTES * chunks:
            raise RequestRejected(
                431, f"trailers or chunk extensions exceed {self.max_header_bytes} bytes"
            )
