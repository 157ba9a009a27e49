"""Data with which a sequence can continue at another instance.

That is a state, and the later requests, which the new instance executes again without responses. A
sequence continues only if its state after the last response is known exactly.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from nereid.core.wire.messages import InferRequest

# Limit of the requests that are kept for one sequence; above it a snapshot is due.
_MAX_REQUEST_BYTES: Final = 1 << 20


class Transfer(Enum):
    """Event for which a sequence without an instance waits. Only then can it get a slot."""

    EXPORT = 1  # the draining instance exports the sequence's state
    RETRY = 2  # the instance was lost, and the executed request is queued again or has ended
    FETCH = 3  # the sequence's snapshot comes from the store


class Restore(NamedTuple):
    """Data that an instance needs for a sequence that comes from another instance."""

    # Opaque; empty for the initial state.
    state: bytes
    # Requests to execute on top of that state, without responses.
    requests: tuple[InferRequest, ...]


class Recovery:
    """Recovery data of one sequence."""

    __slots__ = (
        "base",
        "done",
        "exact",
        "number",
        "open",
        "placed",
        "request_bytes",
        "requests",
        "state",
    )

    def __init__(self, number: int) -> None:
        """Keep the initial state. number: identifies the sequence in its version."""
        self.number = number
        # State after `base` requests; empty for the initial state, `None` if it is in the store.
        self.base = 0
        self.state: bytes | None = b""
        # Executed requests number `base` + 1 to `done`.
        self.requests: list[InferRequest] = []
        self.request_bytes = 0
        self.done = 0
        # True if `state` and `requests` together give the state after `done` requests.
        self.exact = True
        # True if the sequence's instance has the state already.
        self.placed = True
        # Requests that were sent to an instance and have not ended.
        self.open = 0

    @property
    def kept_bytes(self) -> int:
        """Bytes of the state and the requests that are kept in this process."""
        return len(self.state or b"") + self.request_bytes

    def take_restore(self) -> Restore | None:
        """Return the data to send with the next request; `None` if the instance has the state."""
        if self.placed:
            return None
        self.placed = True
        assert self.state is not None, "a snapshot that was not fetched"
        return Restore(self.state, tuple(self.requests))

    def set_base(self, state: bytes | None) -> None:
        """Set the state after `done` requests."""
        self.base, self.state = self.done, state
        self.requests, self.request_bytes = [], 0
        self.exact = True

    def needs_snapshot(self, interval: int) -> bool:
        """Return whether the next execution should end with a snapshot. interval: in requests."""
        return (
            not self.exact
            or len(self.requests) + self.open + 1 >= interval
            or self.request_bytes > _MAX_REQUEST_BYTES
        )

    def add_request(self, request: InferRequest) -> None:
        """Keep a request that was executed without a snapshot."""
        inline = all(type(payload) is bytes for payload in request.payloads)
        if self.exact and inline and self.request_bytes <= _MAX_REQUEST_BYTES:
            self.requests.append(request)
            self.request_bytes += len(request.head) + sum(map(len, request.payloads))
        else:
            # A payload in shared memory cannot run again, as its owner may reuse that memory.
            self.forget()

    def forget(self) -> None:
        """Forget state and requests; the sequence cannot be recovered until the next snapshot."""
        self.set_base(None)
        self.exact = False
