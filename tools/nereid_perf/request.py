"""Requests that are ready to be sent, and the interface of sources of requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Request:
    """A request whose bytes a client can send any number of times; the client adds the framing.

    message: the serialized ModelInferRequest (gRPC), or the body (HTTP). json_bytes: over HTTP, the
    length of the JSON before binary tensors; 0 means that the body is only JSON. workload: index of
    the model that the request is for. sequence: index of the source's sequence that the request
    belongs to, or -1. id: the id in the message, which is unique in the run; "" if the source made
    none. data: index of the model's request with data, for RequestSource.find_mismatch(). at_ns:
    when a trace sends the request, in ns since the beginning of the run; -1 means that the schedule
    sets the time.
    """

    message: bytes
    json_bytes: int = 0
    workload: int = 0
    sequence: int = -1
    id: str = ""
    data: int = -1
    at_ns: int = -1


class RequestSource(Protocol):
    """A source of a worker process's requests, in order.

    A source does no I/O, and uses neither clock nor connection.
    """

    def next_request(self) -> Request | None:
        """Return the next request, or `None` while every sequence has a request in flight."""
        ...

    def on_end(self, request: Request) -> None:
        """Continue a sequence when its request in flight has ended, failed or been cancelled."""
        ...

    def set_draining(self, *, draining: bool) -> None:
        """Start or stop draining, which ends all sequences at the server.

        While the source drains, it returns only the last request of each open sequence.
        """
        ...

    def find_mismatch(self, request: Request, message: bytes, json_bytes: int = 0) -> str:
        """Return how a response (without framing) differs from the user's validation data.

        Returns "" if it does not differ, or if there is no such data. json_bytes: over HTTP, the
        length of the JSON, as the response's header says.
        """
        ...


class TimedSource(RequestSource, Protocol):
    """A source of a trace's requests, which have times relative to the beginning of the trace.

    next_request() returns the requests in order, regardless of their times, and returns `None`
    while the next request's sequence is busy. due_request() returns only requests whose time has
    come.
    """

    def due_request(self, elapsed_ns: int) -> Request | None:
        """Return the next request whose time has come and whose sequence is not busy, or `None`.

        The request's at_ns is its intended time.
        """
        ...

    def next_due_ns(self) -> int | None:
        """Return the time of the next request that is not due yet, or `None` if there is none."""
        ...
