"""Data with which a sequence can continue at another instance.

The data are the sequence's implicit state after some request, and the requests that were executed
after that one. The new instance executes these again without sending responses.

A state is kept in this process if it was moved from a draining instance. A snapshot is kept in a
store, or in this process. A sequence continues only if its state after the last response is known
exactly; otherwise it must be started again. The module is pure, and knows no instance and no store.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from nereid.core.wire.messages import InferRequest

# Maximum size of the requests that are kept for one sequence; above it a snapshot is due.
_MAX_REQUEST_BYTES: Final = 1 << 20


class Transfer(Enum):
    """Event for which a sequence without an instance waits. Only then can it get a slot."""

    EXPORT = 1  # the draining instance exports the sequence's state
    RETRY = 2  # the instance was lost, and the executed request is queued again or has ended
    FETCH = 3  # the sequence's snapshot comes from the store


class Restore(NamedTuple):
    """Data that an instance needs for a sequence that comes from another instance."""

    # Opaque bytes; empty for the initial state.
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
        """Keep the initial state. number: number that identifies the sequence in its version."""
        self.number = number
        # `state` is the sequence's state after `base` requests. It is empty for the initial state,
        # and `None` if the state is in the store.
        self.base = 0
        self.state: bytes | None = b""
        # The sequence's requests number `base` + 1 to `done`, all of which were executed.
        self.requests: list[InferRequest] = []
        self.request_bytes = 0
        self.done = 0
        # True if `state` and `requests` together give the state after `done` requests.
        self.exact = True
        # True if the instance of the sequence has the sequence's state already.
        self.placed = True
        # Number of the sequence's requests that were sent to an instance and have not ended.
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
        """Set the current state of the sequence, which is the state after `done` requests."""
        self.base, self.state = self.done, state
        self.requests, self.request_bytes = [], 0
        self.exact = True

    def needs_snapshot(self, interval: int) -> bool:
        """Return whether the next execution should end with a snapshot.

        interval: number of requests from one snapshot to the next.
        """
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
            # Either the request cannot be run again, as a payload is in shared memory that its
            # owner may have reused by then, or the kept requests would be too large.
            self.forget()

    def forget(self) -> None:
        """Forget state and requests; the sequence cannot be recovered until the next snapshot."""
        self.set_base(None)
        self.exact = False
