"""Data from which a sequence can go on at another instance.

It is the sequence's implicit state after some request, and the requests that have been executed
since, which run there again without sending responses.

A state is kept here if it was moved from a draining instance; a snapshot is in a store, or here. A
sequence goes on exactly where it was, or not at all: if its state after its last response is not
known exactly, it must be started again. Pure; knows no instance and no store.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from nereid.core.wire.messages import InferRequest

# Bound on the requests of one sequence that are kept to run again; above it a snapshot is due.
_MAX_REQUEST_BYTES: Final = 1 << 20


class Transfer(Enum):
    """The event that a sequence without an instance waits for, other than a slot."""

    EXPORT = 1  # its draining instance gives its state away
    RETRY = 2  # its instance was lost; it is decided whether the executed request runs again
    FETCH = 3  # its snapshot comes from the store


class Restore(NamedTuple):
    """Data that an instance needs of a sequence that comes from another one."""

    # Opaque bytes; empty for the initial state.
    state: bytes
    # Requests to run on top of that state, without responses.
    requests: tuple[InferRequest, ...]


class Recovery:
    """Recovery data of one sequence. `kept_bytes` is what it holds in this process."""

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
        """Keep the initial state. number: identifies the sequence in its model version."""
        self.number = number
        # `state` is the one after `base` requests; empty for the initial one, `None` if it is in
        # the store.
        self.base = 0
        self.state: bytes | None = b""
        # Executed requests from `base` to `done`.
        self.requests: list[InferRequest] = []
        self.request_bytes = 0
        self.done = 0
        # State and requests together give the state after `done` requests.
        self.exact = True
        # The sequence's instance has all that it needs.
        self.placed = True
        # Number of the sequence's requests that an instance has.
        self.open = 0

    @property
    def kept_bytes(self) -> int:
        """Bytes of the state and the requests that are kept in this process."""
        return len(self.state or b"") + self.request_bytes

    def take_restore(self) -> Restore | None:
        """Return what the next request takes along; `None` if its instance needs nothing."""
        if self.placed:
            return None
        self.placed = True
        assert self.state is not None, "a snapshot that was not fetched"
        return Restore(self.state, tuple(self.requests))

    def set_base(self, state: bytes | None) -> None:
        """Set the sequence's present state, the one after `done` requests."""
        self.base, self.state = self.done, state
        self.requests, self.request_bytes = [], 0
        self.exact = True

    def needs_snapshot(self, interval: int) -> bool:
        """Return whether the next execution should end with a snapshot, one in `interval`."""
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
            # A payload is in shared memory, which its owner may have reused before a replay.
            self.forget()

    def forget(self) -> None:
        """Forget state and requests: nothing can go on elsewhere until the next snapshot."""
        self.set_base(None)
        self.exact = False
