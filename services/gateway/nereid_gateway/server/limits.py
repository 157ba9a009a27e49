"""Limits of one HTTP connection, and the rejection of a request that exceeds one."""

# layout: not compiled, off the hot path

from __future__ import annotations

from dataclasses import dataclass

from nereid.rpc.net.limits.stall_detection import NO_UPLOAD_LIMITS, UploadLimits

# Bytes of a chunk's size, in as many digits as clients write, and of both line ends.
_CHUNK_FRAMING_BYTES = 20


class RequestRejected(Exception):
    """Reject a request that is not read any further; raised through the parser to stop it."""

    def __init__(self, status: int, message: str, extra: bytes = b"") -> None:
        """Keep the response; extra has further header lines, each with its CRLF."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.extra = extra


@dataclass(frozen=True)
class HttpLimits:
    """Sizes, counts and times; a connection that exceeds one is refused or closed."""

    max_body_bytes: int
    max_header_bytes: int = 65536
    max_chunks: int = 65536
    max_pipelined: int = 32
    # A client that has left this many bytes of a streamed response unread when the next chunk comes
    # is disconnected.
    max_unsent_bytes: int = 1 << 26
    # A request's headers must be complete this long after its first byte.
    header_timeout_s: float = 30.0
    # A body must make progress at least this often.
    body_timeout_s: float = 30.0
    # Throughput that a body must reach as well.
    upload: UploadLimits = NO_UPLOAD_LIMITS
    # A connection without a request is closed after this long.
    idle_timeout_s: float = 600.0
    # A client that reads nothing of its responses for this long is disconnected.
    write_timeout_s: float | None = 60.0
    # Further connections get 503, a few at a time.
    max_connections: int = 32768
    # Number of connections that one client may have (nereid.rpc.net.address.client_of).
    max_client_connections: int | None = None
    # Time for which the bytes of a rejected request that was not read completely are still read and
    # dropped, so that the client can read the response before the connection is reset.
    linger_s: float = 2.0
    # First delay and interval of probes of a client that sent its FIN.
    probe_delay_s: float = 0.25
    probe_interval_s: float = 1.0
    # Interval of the checks of all connections for the timeouts above.
    sweep_interval_s: float = 1.0
    # Error text for a body that is too large, formatted with `size` and `limit`.
    body_too_large: str = "request body of {size} bytes exceeds the limit of {limit} bytes"

    def silence_s(self, *, in_headers: bool) -> float:
        """Return how long a client may pause within a request, in seconds."""
        return self.header_timeout_s if in_headers else self.body_timeout_s

    def check_body(self, size: int) -> None:
        """Reject a body of this size if it is too large.

        Raises:
            RequestRejected: it is.
        """
        if size > self.max_body_bytes:
            message = self.body_too_large.format(size=size, limit=self.max_body_bytes)
            raise RequestRejected(400, message)

    def check_framing(self, size: int, chunks: int) -> None:
        """Reject a body with too much framing, which is chunk extensions and trailers.

        Raises:
            RequestRejected: the framing has too many bytes.
        """
        if size > self.max_header_bytes + _CHUNK_FRAMING_BYTES * chunks:
            raise RequestRejected(
                431, f"trailers or chunk extensions exceed {self.max_header_bytes} bytes"
            )
