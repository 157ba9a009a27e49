"""Common parts of all clients: the pending request, and the interface that generators use."""

# layout: compiled

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from nereid_perf.request import Request


class PendingRequest:
    """A request in flight. Times are in ns of the monotonic clock, and 0 until they are known.

    carrier: connection or stream; `None` while the request waits. json_bytes: of the response.
    Tokens are those that the response says, or 0.
    """

    __slots__ = (
        "between",
        "carrier",
        "first_ns",
        "input_tokens",
        "intended_ns",
        "json_bytes",
        "last_ns",
        "message",
        "output_tokens",
        "request",
        "responses",
        "sent_ns",
        "server_timing",
    )

    def __init__(self, request: Request, intended_ns: int) -> None:
        self.request = request
        self.intended_ns = intended_ns
        self.sent_ns = 0
        self.first_ns = 0
        self.last_ns = 0
        self.responses = 0
        self.between: list[int] | None = None
        self.carrier: Any = None
        self.message = b""
        self.json_bytes = 0
        self.server_timing = ""
        self.input_tokens = 0
        self.output_tokens = 0

    def on_response(self, now_ns: int) -> None:
        """Note the time of a response."""
        if not self.responses:
            self.first_ns = now_ns
        elif self.between is None:
            self.between = [now_ns - self.last_ns]
        else:
            self.between.append(now_ns - self.last_ns)
        self.last_ns = now_ns
        self.responses += 1


class OnEnd(Protocol):
    """A callback that is called once for each request, never within send() or cancel()."""

    def __call__(self, pending: PendingRequest, error: str, /) -> None:
        """Report the end of a request; error "" means success."""


class WireClient(Protocol):
    """The connections of one worker to one server."""

    async def open(self, in_flight: int) -> None:
        """Open connections for this many requests; raise OSError with a text for users."""
        ...

    def send(self, request: Request, intended_ns: int) -> PendingRequest:
        """Send a request at once, or as soon as a connection is free."""
        ...

    def flush(self) -> None:
        """Write now what send() would write only at the end of the event loop's turn."""
        ...

    def cancel(self, pending: PendingRequest) -> None:
        """Cancel a request that has not ended; on_end is not called for it any more."""
        ...

    async def close(self) -> None:
        """Close all connections."""
