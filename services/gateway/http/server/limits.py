"""What one HTTP connection may ask for, and the refusal of more."""

from __future__ import annotations

from dataclasses import dataclass

# A chunk's size, in as many digits as anybody writes, and both line ends.
_CHUNK_HEAD_BYTES = 20


class Refused(Exception):
    """A request that is not read on; thrown through the parser to stop it."""

    def __init__(self, status: int, message: str, lines: bytes = b"") -> None:
        """lines: further header lines of the answer, each with its CRLF."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.lines = lines


@dataclass(frozen=True)
class HttpLimits:
    """Sizes, counts and times; a connection that passes one is refused or closed."""

    max_body_bytes: int
    max_header_bytes: int = 65536
    max_chunks: int = 65536
    max_pipelined: int = 32
    # A client that leaves this much of an answer in pieces untaken when the next piece comes has
    # given it up.
    max_unsent_bytes: int = 1 << 26
    # A request's headers must be whole this long after its first byte.
    header_timeout_s: float = 30.0
    # A body must bring something at least this often.
    body_timeout_s: float = 30.0
    # A connection without a request is closed after this long.
    idle_timeout_s: float = 600.0
    # A client that takes nothing of its answers for this long is cut off.
    write_timeout_s: float | None = 60.0
    # Those beyond are answered 503, a few at a time.
    max_connections: int = 32768
    # After a refusal that leaves a request unread: how long its bytes are still swallowed, so that
    # the client gets to read the answer.
    linger_s: float = 2.0
    # When, and how often, a client that sent its FIN is tried.
    probe_delay_s: float = 0.25
    probe_interval_s: float = 1.0
    # How often connections are looked at for all these times.
    sweep_interval_s: float = 1.0

    def silence_s(self, *, in_headers: bool) -> float:
        """How long a client may say nothing in the midst of a request."""
        return self.header_timeout_s if in_headers else self.body_timeout_s

    def check_body(self, size: int) -> None:
        """Refuse a body of this size if it is too large."""
        if size > self.max_body_bytes:
            raise Refused(
                400,
                f"request JSON size of {size} bytes exceeds the maximum allowed input size of"
                f" {self.max_body_bytes} bytes. Use --http-max-input-size to increase the limit.",
            )

    def check_framing(self, size: int, chunks: int) -> None:
        """Refuse a body that is mostly chunks' extensions and trailers, of this size without it."""
        if size > self.max_header_bytes + _CHUNK_HEAD_BYTES * chunks:
            raise Refused(431, f"trailers or chunk extensions exceed {self.max_header_bytes} bytes")
