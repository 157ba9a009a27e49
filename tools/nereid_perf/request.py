"""Requests that are ready to be sent, and the interface of sources of requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Request:
    """A request whose bytes a client can send any number of times; the client adds the framing.

    message: serialized ModelInferRequest (gRPC) or body (HTTP). json_bytes: over HTTP, the JSON's
    length before binary tensors, or 0. sequence: the source's index for it, or -1. id: unique in
    the run, or "". data: index for find_mismatch(). at_ns: when a trace sends it, since the run's
    beginning, or -1.
    """

    message: bytes
    json_bytes: int = 0
    workload: int = 0
    sequence: int = -1
    id: str = ""
    data: int = -1
    at_ns: int = -1


class RequestSource(Protocol):
    """A source of a worker process's requests, in order; does no I/O and knows no clock."""

    def next_request(self) -> Request | None:
        """Return the next request, or `None` while every sequence has a request in flight."""
        ...

    def on_end(self, request: Request) -> None:
        """Continue a sequence when its request in flight has ended, failed or been cancelled."""
        ...

    def set_draining(self, *, draining: bool) -> None:
        """Start or stop draining. Draining returns only the last requests of open sequences."""
        ...

    def find_mismatch(self, request: Request, message: bytes, json_bytes: int = 0) -> str:
        """Return how a response (without framing) differs from the validation data, or "".

        json_bytes: the length of the JSON from the header (HTTP).
        """
        ...


class TimedSource(RequestSource, Protocol):
    """A source of a trace's requests, with times since the beginning of the trace.

    next_request() ignores these times; it returns `None` while the next request's sequence is busy.
    """

    def due_request(self, elapsed_ns: int) -> Request | None:
        """Return the next request whose at_ns has come and whose sequence is not busy."""
        ...

    def next_due_ns(self) -> int | None:
        """Return the time of the next request that is not due yet, or `None` if there is none."""
        ...
