"""A console without a page: reads the events of /console/stream, and keeps the document."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.support.console.patches import patched

_LIMIT_S = 20


class ConsoleClient:
    """One stream. events: what has come, by kind. sizes: the bytes of each."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response
        self.document: dict[str, Any] = {}
        self.events: list[str] = []
        self.sizes: list[int] = []

    def read_event(self) -> dict[str, Any]:
        """The document once the next event has come.

        Raises:
            EOFError: the stream has ended.
        """
        event = ""
        while line := self._response.readline():
            name, _, text = line.decode().rstrip("\n").partition(": ")
            if name == "event":
                event = text
            elif name == "data":
                self.events.append(event)
                self.sizes.append(len(line))
                data = json.loads(text)
                self.document = data if event == "snapshot" else patched(self.document, data)
                return self.document
        raise EOFError

    def until(self, condition: Callable[[dict[str, Any]], object], events: int = 30) -> Any:
        """Return a condition's first value that is true, of the documents in their order."""
        for _ in range(events):
            if found := condition(self.read_event()):
                return found
        raise AssertionError(f"not within {events} events: {self.document}")


@contextmanager
def console(
    address: str, query: str = "", headers: Mapping[str, str] | None = None
) -> Iterator[ConsoleClient]:
    """An open console."""
    connection = http.client.HTTPConnection(address, timeout=_LIMIT_S)
    try:
        connection.request("GET", f"/console/stream{query}", headers=dict(headers or {}))
        response = connection.getresponse()
        assert response.status == http.HTTPStatus.OK, response.read()
        try:
            yield ConsoleClient(response)
        finally:
            # It has the socket.
            response.close()
    finally:
        connection.close()


def fetch(
    address: str, target: str, method: str = "GET", headers: Mapping[str, str] | None = None
) -> tuple[http.client.HTTPResponse, bytes]:
    """One response, and its body."""
    connection = http.client.HTTPConnection(address, timeout=_LIMIT_S)
    try:
        connection.request(method, target, headers=dict(headers or {}))
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()
