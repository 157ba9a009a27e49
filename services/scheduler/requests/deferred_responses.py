"""Responses that come after their batch was executed.

A model that is not decoupled may keep response senders and return from execute() without responses
to all of its batch: its instance gets the next batch, and responds to each deferred request once,
whenever it likes. Decoupled models (any number of responses) have an accounting of their own, in
models.decoupled_version. Knows no queue and no stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.core.codecs import read_response
from nereid.observability.metrics import BACKEND
from nereid.services.scheduler.executors.instance import DeferredBatch, check_members

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.messages import InferResponse
    from nereid.pb import nereid_pb2 as pb
    from nereid.services.scheduler.executors.instance import Instance, Running
    from nereid.services.scheduler.observability.execution import Execution
    from nereid.services.scheduler.observability.statistics import ModelStatistics
    from nereid.services.scheduler.requests.entry import Entry

    OnResponse = Callable[[Entry, InferResponse, Running], None]


class DeferredResponses:
    """One model version's. on_response: called with each response, also to cancelled entries."""

    def __init__(self, statistics: ModelStatistics, on_response: OnResponse) -> None:
        self._statistics = statistics
        self._on_response = on_response

    def defer_batch(
        self, instance: Instance, running: Running, reply: pb.Executed, execution: Execution
    ) -> None:
        """An instance has executed a batch and responded to some of it, or nothing."""
        self._statistics.record_execution(running.batch, execution)
        deferred = DeferredBatch(running, execution, dict(enumerate(running.batch.entries)))
        for entry in running.batch.entries:
            entry.execution = execution
        instance.deferred[running.id] = deferred
        instance.open_members += len(deferred.waiting)
        self._send_responses(instance, deferred, reply, execution.finished_ns)

    def on_message(self, instance: Instance, message: bytes, now_ns: int) -> bool:
        """Whether a message is about a deferred batch. Raises on a malformed one."""
        reply = instance.read_executed(message)
        deferred = instance.deferred.get(reply.id)
        if deferred is None:
            return False
        check_members(reply, deferred.waiting.keys())
        self._send_responses(instance, deferred, reply, now_ns)
        if not instance.at_work:
            instance.on_idle()
        return True

    def _send_responses(
        self, instance: Instance, deferred: DeferredBatch, reply: pb.Executed, now_ns: int
    ) -> None:
        for message in reply.responses:
            entry, response = deferred.waiting.pop(message.id), read_response(message)
            instance.open_members -= 1
            if response.error is None or response.error.by_model:
                self._statistics.record_end(entry, deferred.execution, now_ns)
            else:
                self._statistics.record_failure(entry, now_ns, BACKEND)
            self._on_response(entry, response, deferred.running)
        if not deferred.waiting:
            del instance.deferred[deferred.running.id]


def drop_deferred(instance: Instance) -> list[Entry]:
    """The instance is lost: the entries that it leaves without a response."""
    entries = [entry for batch in instance.deferred.values() for entry in batch.waiting.values()]
    instance.open_members -= len(entries)
    instance.deferred.clear()
    return entries
