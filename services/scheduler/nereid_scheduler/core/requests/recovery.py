"""What a sequence can go on from at another instance: its implicit state after some request, and
the requests that have been executed since, which run there again without anybody's notice.

A state is where it was moved to from an instance that drains (here), or a snapshot (in a store, or
here). Without a doubt, or not at all: a sequence whose state after its last response is not known
exactly must be started again.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from nereid.core.wire.messages import InferRequest

# Of the requests of one sequence that are kept to run again; above it, a snapshot is due.
_MAX_REQUEST_BYTES: Final = 1 << 20


class Transfer(Enum):
    """What a sequence without an instance waits for, other than a slot."""

    EXPORT = 1  # its draining instance is to give its state away
    RETRY = 2  # its instance was lost; the decision about the request that this executed
    FETCH = 3  # its snapshot


class Restore(NamedTuple):
    """What an instance needs of a sequence that comes from another one."""

    # Opaque; empty: the initial state.
    state: bytes
    # To run after that, without responses.
    requests: tuple[InferRequest, ...]


class Recovery:
    """One sequence's. `kept_bytes` is what it holds here."""

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
        """number: of the sequence; unique in its model version."""
        self.number = number
        # The state after so many requests; empty: the initial one; None: it is in the store.
        self.base = 0
        self.state: bytes | None = b""
        # The executed requests from there to `done`.
        self.requests: list[InferRequest] = []
        self.request_bytes = 0
        self.done = 0
        # State and requests make up the state after `done` requests.
        self.exact = True
        # The instance has had all that it needs.
        self.placed = True
        # Requests that an instance has.
        self.open = 0

    @property
    def kept_bytes(self) -> int:
        return len(self.state or b"") + self.request_bytes

    def take_restore(self) -> Restore | None:
        """For the sequence's next request; None: its instance needs nothing."""
        if self.placed:
            return None
        self.placed = True
        assert self.state is not None, "a snapshot that was not fetched"
        return Restore(self.state, tuple(self.requests))

    def set_base(self, state: bytes | None) -> None:
        """Set what its state is now, after `done` requests."""
        self.base, self.state = self.done, state
        self.requests, self.request_bytes = [], 0
        self.exact = True

    def needs_snapshot(self, interval: int) -> bool:
        """Whether the next request's execution should end with one, of every `interval`."""
        return (
            not self.exact
            or len(self.requests) + self.open + 1 >= interval
            or self.request_bytes > _MAX_REQUEST_BYTES
        )

    def add_request(self, request: InferRequest) -> None:
        """Executed, without a snapshot."""
        inline = all(type(payload) is bytes for payload in request.payloads)
        if self.exact and inline and self.request_bytes <= _MAX_REQUEST_BYTES:
            self.requests.append(request)
            self.request_bytes += len(request.head) + sum(map(len, request.payloads))
        else:
            # A payload in shared memory: its owner may have reused it before a replay.
            self.forget()

    def forget(self) -> None:
        """There is nothing to go on from until the next snapshot."""
        self.set_base(None)
        self.exact = False
