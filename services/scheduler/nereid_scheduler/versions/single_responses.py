"""Handles the responses of models that give each request one response.

A Python model may return from execute() without all responses. The missing ones are *deferred*: the
instance gets its next batch, and sends each of them at any time later.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nereid.core.errors import ProtocolError
from nereid.observability.metrics import BACKEND
from nereid_scheduler.core.instances.remote_instance import read_each_response
from nereid_scheduler.versions.tracing.request_traces import end_attempts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.wire.executed import Executed
    from nereid.core.wire.messages import InferResponse
    from nereid_scheduler.core.instances.instance_batches import Member, SentBatch
    from nereid_scheduler.core.instances.remote_instance import RemoteInstance
    from nereid_scheduler.core.requests.entry import Entry
    from nereid_scheduler.versions.model_version import ModelVersion
    from nereid_scheduler.versions.state_transfers import StateTransfers

_now_ns = time.monotonic_ns


class SingleResponses:
    """Handle the responses of one model version."""

    def __init__(self, version: ModelVersion, transfers: StateTransfers) -> None:
        self._version = version
        self._transfers = transfers

    def on_sent(self, instance: RemoteInstance, sent: SentBatch) -> None:
        """Do nothing, as one reply for the whole batch is expected."""

    def on_reply(self, instance: RemoteInstance, message: bytes) -> None:
        """Handle a reply: an executed batch, deferred responses, or exported sequence states."""
        reply, responses = instance.read_responses(message)
        batches = instance.batches
        if batches.exporting and reply.id == batches.exporting:
            if responses:
                raise ProtocolError("responses beside the states that it was asked for")
            if batches.end_export(reply.id, [state.slot for state in reply.states]):
                self._transfers.end_export(instance, reply.states)
                return
        sent = batches.replying(reply.id)
        finished_ns = _now_ns()
        if sent.execution is not None:
            self._on_deferred(instance, sent, reply, finished_ns)
        elif reply.partial:
            sent.track_members(finished_ns)
            self._end_partly(instance, sent, reply, finished_ns)
        else:
            sent.check_whole(len(responses))
            self._end_whole(instance, sent, reply, responses, finished_ns)
        if instance.handing_over:
            self._transfers.export(instance)
        elif not instance.at_work:
            instance.on_idle()

    def _end_whole(
        self,
        instance: RemoteInstance,
        sent: SentBatch,
        reply: Executed,
        responses: list[InferResponse],
        finished_ns: int,
    ) -> None:
        version, batch = self._version, sent.batch
        if reply.states:
            self._transfers.check_states(batch.entries, reply)
        execution = version.end_execution(instance, sent, reply, finished_ns)
        if batch.traced:
            end_attempts(instance, sent, finished_ns, target=version.target)
        entries = batch.entries
        self._transfers.end_batch(entries, responses, reply)
        failed: list[Entry] = []
        # check_whole() has checked that there are as many responses as entries.
        for index, entry in enumerate(entries):
            response = responses[index]
            entry.execution = execution
            # As on Triton, an error that the model itself sends counts as served.
            if response.error and not response.error.by_model:
                failed.append(entry)
            version.respond(entry, response, sent.revision)
        # Statistics must not delay the responses.
        version.statistics.record_batch(batch, execution, failed)
        version.record_pace(instance, sent, execution)
        error = _error_of(failed[0], entries, responses) if failed else ""
        version.timeline.record_batch(version.named, instance, sent, execution, error)

    def _end_partly(
        self, instance: RemoteInstance, sent: SentBatch, reply: Executed, finished_ns: int
    ) -> None:
        """End an execution after which some or all requests of the batch have no response yet."""
        if reply.busy:
            raise ProtocolError(f"responses to batch {sent.id} before it was executed")
        responses = _read_deferred(sent, reply)
        execution = self._version.end_execution(instance, sent, reply, finished_ns)
        if sent.batch.traced:
            end_attempts(instance, sent, finished_ns, target=self._version.target)
        self._version.record_pace(instance, sent, execution)
        self._transfers.defer_batch(sent.batch.entries)
        self._version.statistics.record_execution(sent.batch, execution)
        for entry in sent.batch.entries:
            entry.execution = execution
        self._respond(instance, sent, responses, finished_ns)
        self._version.timeline.record_batch(self._version.named, instance, sent, execution)

    def _on_deferred(
        self, instance: RemoteInstance, sent: SentBatch, reply: Executed, now_ns: int
    ) -> None:
        if not reply.partial:
            raise ProtocolError(f"batch {sent.id} was executed twice")
        self._respond(instance, sent, _read_deferred(sent, reply), now_ns)

    def _respond(
        self,
        instance: RemoteInstance,
        sent: SentBatch,
        responses: Sequence[tuple[Member, InferResponse]],
        now_ns: int,
    ) -> None:
        version, execution = self._version, sent.execution
        assert execution is not None, "deferred responses of a batch that executes"
        for member, response in responses:
            sent.end_member(member, now_ns)
            if response.error is None or response.error.by_model:
                version.statistics.record_end(member.entry, execution, now_ns)
            else:
                version.statistics.record_failure(member.entry, now_ns, BACKEND)
        instance.batches.end_responding(sent)
        for member, response in responses:
            version.respond(member.entry, response, sent.revision)

    def lose_batch(self, sent: SentBatch, cause: str, now_ns: int) -> list[Entry]:  # noqa: ARG002 - of those that had responses
        """Return the entries of a lost batch that must run again."""
        return sent.open_entries()

    def set_flow(self, entry: Entry, *, paused: bool) -> None:
        """Do nothing, as flow control applies only to requests with several responses."""


def _error_of(failed: Entry, entries: Sequence[Entry], responses: Sequence[InferResponse]) -> str:
    error = responses[entries.index(failed)].error
    return "" if error is None else error.message


def _read_deferred(sent: SentBatch, reply: Executed) -> list[tuple[Member, InferResponse]]:
    """Return responses by member; raise ProtocolError if a member expects none or gets several."""
    indexes = [message.id for message in reply.responses]
    if len({*indexes}) < len(indexes):
        raise ProtocolError(f"several responses to a member of batch {sent.id}: {indexes}")
    members = [sent.open_member(index) for index in indexes]
    return list(zip(members, read_each_response(reply.responses), strict=True))
