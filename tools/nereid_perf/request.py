"""One request, ready to be sent, and where a worker's requests come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Request:
    """Bytes that a client sends as they are, any number of times; the client adds the framing.

    message: over gRPC the serialized ModelInferRequest, over HTTP the body.
    json_bytes: over HTTP, the length of the JSON before binary tensors; 0: nothing but JSON.
    workload: which of the run's models it is for, by its index.
    sequence: which of the source's sequences it belongs to, by its index; -1: none.
    id: in the message, and no other request's of the run; "": none, unless the user gave one.
    data: which of its model's requests with data it is, for RequestSource.find_mismatch().
    at_ns: when a trace has it sent, from the run's begin; -1: whenever the schedule says.
    """

    message: bytes
    json_bytes: int = 0
    workload: int = 0
    sequence: int = -1
    id: str = ""
    data: int = -1
    at_ns: int = -1


class RequestSource(Protocol):
    """What a worker process sends, in order. Pure: it knows neither clock nor connection."""

    def next_request(self) -> Request | None:
        """None: each sequence waits for the end of its request in flight."""
        ...

    def on_end(self, request: Request) -> None:
        """The request's last response, its failure or its cancellation: its sequence goes on."""
        ...

    def set_draining(self, *, draining: bool) -> None:
        """While it drains, each open sequence gets its last request, and there are no others: so
        that none is left at the server.
        """
        ...

    def find_mismatch(self, request: Request, message: bytes, json_bytes: int = 0) -> str:
        """How a response, without framing, differs from the user's validation data; "": it does
        not, or there is none. json_bytes: over HTTP, as the response's header says.
        """
        ...


class TimedSource(RequestSource, Protocol):
    """A trace's, by the time since its begin. next_request() takes one after the other, whenever it
    is called, and waits for a busy sequence; due_request() takes what has arrived meanwhile.
    """

    def due_request(self, elapsed_ns: int) -> Request | None:
        """The next one that has arrived by then and whose sequence is not busy; its at_ns is the
        time that was intended.
        """
        ...

    def next_due_ns(self) -> int | None:
        """When the next one arrives that due_request() has not seen; None: there is none."""
        ...
