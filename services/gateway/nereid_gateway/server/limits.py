"""Limits of one HTTP connection, and the exception that rejects a request beyond a limit."""

# layout: not compiled, off the hot path

from __future__ import annotations

from dataclasses import dataclass

from nereid.rpc.net.limits.stall_detection import NO_UPLOAD_LIMITS, UploadLimits

# Size line and both line ends of a chunk, with as many digits as clients usually write.
_CHUNK_FRAMING_BYTES = 20


class RequestRejected(Exception):
    """Raised to reject a request. It stops the parser, so that no more of the request is read."""

    def __init__(self, status: int, message: str, extra: bytes = b"") -> None:
        """extra: further header lines, each with its CRLF."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.extra = extra


@dataclass(frozen=True)
class HttpLimits:
    """Limits on sizes, counts and times. A connection that exceeds one is refused or closed."""

    max_body_bytes: int
    max_header_bytes: int = 65536
    max_chunks: int = 65536
    max_pipelined: int = 32
    # A client with more unread bytes of a streamed response is disconnected at the next chunk.
    max_unsent_bytes: int = 1 << 26
    # From a request's first byte to the end of its headers.
    header_timeout_s: float = 30.0
    # At least one byte of a body must arrive in this time.
    body_timeout_s: float = 30.0
    upload: UploadLimits = NO_UPLOAD_LIMITS
    # For a connection without a request.
    idle_timeout_s: float = 600.0
    # A client that reads none of its responses for so long is disconnected. None means never.
    write_timeout_s: float | None = 60.0
    # A few further connections get status 503; the others are aborted.
    max_connections: int = 32768
    # Per client (nereid.rpc.net.address.client_of).
    max_client_connections: int | None = None
    # A rejected request's rest is read and dropped for so long. Unread, it would reset the
    # connection before the client has read the response.
    linger_s: float = 2.0
    # From a client's FIN to the first probe of the client, and from each probe to the next.
    probe_delay_s: float = 0.25
    probe_interval_s: float = 1.0
    # Between checks of all connections for the timeouts above.
    sweep_interval_s: float = 1.0
    # Formatted with `size` and `limit`, both in bytes.
    body_too_large: str = "request body of {size} bytes exceeds the limit of {limit} bytes"

    def silence_s(self, *, in_headers: bool) -> float:
        """Return how long a client may pause within a request."""
        return self.header_timeout_s if in_headers else self.body_timeout_s

    def check_body(self, size: int) -> None:
        """Reject a body that is too large."""
        if size > self.max_body_bytes:
            message = self.body_too_large.format(size=size, limit=self.max_body_bytes)
            raise RequestRejected(400, message)

    def check_framing(self, size: int, chunks: int) -> None:
        """Reject a body with too much framing: chunk extensions and trailers. size: bytes."""
        if size > self.max_header_bytes + _CHUNK_FRAMING_BYTES * chunks:
            raise RequestRejected(
                431, f"trailers or chunk extensions exceed {self.max_header_bytes} bytes"
            )
