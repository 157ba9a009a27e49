"""What clients asked and what they got, in the order of time.

A history is a file of JSON lines: one when a request is sent, one when it is over. A client that
dies leaves requests without a second line. Times are seconds of the machine's monotonic clock
since the campaign's begin, the same for all processes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TextIO


class Outcome(Enum):
    """How a request ended, as its client sees it."""

    OK = "ok"
    # An error with a status, from the mesh.
    ERROR = "error"
    # The connection broke, or could not be made: the client cannot know whether it ran.
    DISCONNECTED = "disconnected"
    # Nothing came for as long as the client waits.
    TIMEOUT = "timeout"
    # Its client cancelled it: it may run or not.
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Step:
    """The place of a request in a sequence."""

    sequence: int
    # A client that had an error begins the sequence again, with the same id.
    attempt: int
    number: int
    length: int


@dataclass(frozen=True, slots=True)
class Result:
    """One response: the model's function of the value, and which version of the model it is."""

    value: int
    version: int


@dataclass(slots=True)
class Request:
    """One request and its end."""

    # Unique in the history.
    id: int
    client: str
    model: str
    value: int
    began_s: float
    step: Step | None = None
    # How many responses a decoupled model is asked for.
    count: int = 1
    # The request that failed before, of a client that tries once more.
    retry_of: int | None = None
    # Of its tensor, where that varies.
    elements: int = 1
    # How long it may take, as the mesh is told.
    deadline_s: float | None = None
    # After how long its client cancels it.
    cancel_s: float | None = None
    outcome: Outcome | None = None
    ended_s: float = 0.0
    status: str = ""
    text: str = ""
    results: tuple[Result, ...] = ()


class HistoryWriter:
    """Appends to one client process's file."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def begin(self, request: Request) -> None:
        made = {
            "id": request.id,
            "client": request.client,
            "model": request.model,
            "value": request.value,
            "began_s": round(request.began_s, 6),
        }
        if request.step:
            made["step"] = list(asdict(request.step).values())
        if request.count != 1:
            made["count"] = request.count
        if request.elements != 1:
            made["elements"] = request.elements
        for name in ("retry_of", "deadline_s", "cancel_s"):
            if (given := getattr(request, name)) is not None:
                made[name] = given
        self._write(made)

    def end(self, request: Request) -> None:
        assert request.outcome
        made: dict[str, Any] = {
            "end": request.id,
            "outcome": request.outcome.value,
            "ended_s": round(request.ended_s, 6),
        }
        if request.results:
            made["results"] = [[each.value, each.version] for each in request.results]
        if request.status or request.text:
            made |= {"status": request.status, "text": request.text}
        self._write(made)

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")


@dataclass(frozen=True)
class History:
    """All clients' requests by id, and what the files have that cannot be."""

    requests: dict[int, Request]
    # Ids that were sent twice, or that ended twice or without having begun.
    repeated: tuple[int, ...] = ()


def read_history(lines: Iterable[str]) -> History:
    requests: dict[int, Request] = {}
    repeated: list[int] = []
    for line in lines:
        fields = json.loads(line)
        if "end" not in fields:
            if step := fields.get("step"):
                fields["step"] = Step(*step)
            request = Request(**fields)
            if request.id in requests:
                repeated.append(request.id)
            requests[request.id] = request
            continue
        ended = requests.get(fields["end"])
        if ended is None or ended.outcome is not None:
            repeated.append(fields["end"])
            continue
        ended.outcome = Outcome(fields["outcome"])
        ended.ended_s = fields["ended_s"]
        ended.status, ended.text = fields.get("status", ""), fields.get("text", "")
        ended.results = tuple(Result(*each) for each in fields.get("results", ()))
    return History(requests, tuple(repeated))


def lines_of(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        with path.open() as file:
            yield from file
