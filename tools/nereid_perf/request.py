"""Requests that are ready to be sent, and sources of a worker's requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Request:
    """Bytes that a client sends as they are, any number of times; the client adds the framing.

    message: the serialized ModelInferRequest over gRPC, the body over HTTP. json_bytes: over HTTP,
    the length of the JSON before binary tensors; 0 means nothing but JSON. workload: index of the
    run's model that it is for. sequence: index of the source's sequence that it belongs to, or -1.
    id: the id in the message, which no other request of the run has; "" if there is none that the
    source made. data: index of the model's request with data, for RequestSource.find_mismatch().
    at_ns: time since the run's begin at which a trace sends it; -1 leaves the time to the schedule.
    """

    message: bytes
    json_bytes: int = 0
    workload: int = 0
    sequence: int = -1
    id: str = ""
    data: int = -1
    at_ns: int = -1


class RequestSource(Protocol):
    """Source of a worker process's requests, in order.

    Pure: it knows neither clock nor connection.
    """

    def next_request(self) -> Request | None:
        """Return the next request, or `None` while each sequence has one in flight."""
        ...

    def on_end(self, request: Request) -> None:
        """Continue a sequence after its request's last response, failure or cancellation."""
        ...

    def set_draining(self, *, draining: bool) -> None:
        """Start or stop draining, so that no sequence is left open at the server.

        While the source drains, each open sequence gets its last request, and there are no other
        requests.
        """
        ...

    def find_mismatch(self, request: Request, message: bytes, json_bytes: int = 0) -> str:
        """Return how a response, without framing, differs from the user's validation data.

        Returns "" if it does not differ, or if there is no such data. json_bytes: over HTTP, as in
        the response's header.
        """
        ...


class TimedSource(RequestSource, Protocol):
    """Source of a trace, whose requests have times since the trace's begin.

    next_request() returns one after the other, whenever it is called, and waits for a busy
    sequence; due_request() returns what has arrived meanwhile.
    """

    def due_request(self, elapsed_ns: int) -> Request | None:
        """Return the next request that has arrived by then and whose sequence is not busy.

        Its at_ns is the time that was intended.
        """
        ...

    def next_due_ns(self) -> int | None:
        """Return the arrival of the next request that due_request() has not seen, or `None`."""
        ...
