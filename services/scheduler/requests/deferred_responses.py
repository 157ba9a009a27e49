"""Requests whose instance is free again before it has answered them.

A model that is not decoupled may keep response senders and return from execute() without answers to
all of its batch: it gets the next one, and answers when it likes, each request once. Knows no queue
and no stream.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from nereid.core.codecs import read_response
from nereid.observability.metrics import BACKEND
from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from nereid.core.messages import InferResponse
    from nereid.services.scheduler.executors.instance import Instance, Running
    from nereid.services.scheduler.observability.execution import Execution
    from nereid.services.scheduler.observability.statistics import ModelStatistics
    from nereid.services.scheduler.requests.entry import Entry

    OnResponse = Callable[[Entry, InferResponse, Running], None]


class Late(NamedTuple):
    """A batch that was executed, and those of its members that await an answer, by their places."""

    running: Running
    execution: Execution
    waiting: dict[int, Entry]


class LateResponses:
    """One model version's; on_answer: has an answer to an entry that it waits for, or did."""

    def __init__(self, statistics: ModelStatistics, on_response: OnResponse) -> None:
        self._statistics = statistics
        self._on_response = on_response

    def begin(
        self, instance: Instance, running: Running, reply: pb.Executed, execution: Execution
    ) -> None:
        """An instance has executed a batch and answered some of it, or nothing."""
        self._statistics.record_execution(running.batch, execution)
        late = Late(running, execution, dict(enumerate(running.batch.entries)))
        for entry in running.batch.entries:
            entry.execution = execution
        instance.late[running.id] = late
        instance.open_members += len(late.waiting)
        self._take(instance, late, reply)

    def take(self, instance: Instance, message: bytes) -> bool:
        """Whether a message is about such a batch; raises whatever shows that it makes no sense."""
        reply = pb.Executed.FromString(message)
        late = instance.late.get(reply.id)
        if late is None:
            return False
        check_places(reply, late.waiting.keys())
        self._take(instance, late, reply)
        if not instance.at_work:
            instance.on_idle()
        return True

    def _take(self, instance: Instance, late: Late, reply: pb.Executed) -> None:
        now_ns = time.monotonic_ns()
        for message in reply.responses:
            entry, response = late.waiting.pop(message.id), read_response(message)
            instance.open_members -= 1
            if response.error is None:
                self._statistics.record_end(entry, late.execution, now_ns)
            else:
                self._statistics.record_failure(entry, now_ns, BACKEND)
            self._on_response(entry, response, late.running)
        if not late.waiting:
            del instance.late[late.running.id]


def lose(instance: Instance) -> list[Entry]:
    """An instance is gone: those that it leaves without an answer."""
    left = [entry for late in instance.late.values() for entry in late.waiting.values()]
    instance.open_members -= len(left)
    instance.late.clear()
    return left


def check_places(reply: pb.Executed, waiting: Container[int]) -> None:
    """Raise ValueError if it answers what awaits no answer."""
    places = [response.id for response in reply.responses]
    if len({*places}) < len(places) or any(place not in waiting for place in places):
        raise ValueError(f"answers to members {places}, some of which await none")
