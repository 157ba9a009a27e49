"""Batches for models that execute requests: from an instance's stream to the model and back.

The instance's thread waits for both at once and is never busy itself, so that a model can respond
while it executes, and long after. How a model runs is its backend's affair; what becomes of a batch
is decided by open_batches.
"""

from __future__ import annotations

import logging
import select
import time
from time import perf_counter_ns
from typing import TYPE_CHECKING

from nereid.backends import ModelLostError
from nereid.core.errors import Internal, NereidError
from nereid.core.messages import ErrorStatus, error_status_of
from nereid.pb import nereid_pb2 as pb
from nereid.services.executor.batch.begun_batches import BegunBatches
from nereid.services.executor.batch.open_batches import BatchState, OpenBatches
from nereid.services.executor.recent_runs import RecentRuns
from nereid.services.executor.tracing import Run, record

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from nereid.backends import InstanceSpec, Request, RequestModel
    from nereid.observability.tracing import Tracer
    from nereid.rpc import BlockingStream
    from nereid.services.executor.batch.open_batches import OpenBatch

_log = logging.getLogger(__name__)


class RequestRunner:
    """Executes batches on one loaded model; used by its instance's thread alone."""

    def __init__(
        self,
        spec: InstanceSpec,
        model: RequestModel,
        tracer: Tracer | None = None,
        recent_runs: RecentRuns | None = None,
    ) -> None:
        """recent_runs: is notified of the requests that run."""
        self._name = spec.name
        self._model = model
        self._tracer = tracer
        self._recent_runs = recent_runs or RecentRuns()
        # By the model's number: the scheduler may use its own again on a new stream.
        self._open = OpenBatches(
            spec.config,
            spec.version_path.parent,
            spec.name,
            decoupled=model.decoupled,
            traced=tracer is not None,
        )
        self.output_buffers = self._open.output_buffers
        # Whether it keeps implicit state of sequences that it can give away and get.
        self.has_states = self._open.has_states
        self._last_number = 0
        self._begun = BegunBatches()
        # The batch that the model executes now, and when that must end.
        self._executing: OpenBatch | None = None
        self._deadline: float | None = None
        # Asks for states, which are sent when all batches are complete.
        self._export: pb.Batch | None = None

    @property
    def busy(self) -> bool:
        """Whether some request waits for a response."""
        return bool(self._open.batches)

    def execute(self, frame: bytes) -> bytes:
        """Run one Batch and wait for all its responses, as a warm-up does."""
        replies = list(self._begin_batch(frame))
        poll = self._poll_model()
        while self.busy:
            replies += self._collect_frames({descriptor for descriptor, _ in poll.poll()})
        whole = pb.Executed()
        for reply in replies:
            whole.MergeFromString(reply)
        return whole.SerializeToString()

    def serve(
        self, stream: BlockingStream, stopping: Callable[[], bool], on_batch: Callable[[], None]
    ) -> None:
        """Serve until the stream ends, or until stopping and all batches are complete.

        on_batch: called after each batch that was executed. Raises ModelLostError when the model is
        lost, after responding to what it was executing; batches that it never saw are left to the
        scheduler, which runs them elsewhere.
        """
        poll = self._poll_model()
        source = stream.fileno()
        poll.register(source, select.POLLIN)
        try:
            self._cancel_batches()
            # The next scheduler numbers its batches from 1 again.
            self._begun = BegunBatches()
            while self.busy or not stopping():
                wait_ms = 0 if stream.has_input else self._wait_ms()
                ready = {descriptor for descriptor, _ in poll.poll(wait_ms)}
                # Not asking idle descriptors saves a system call for each.
                arrived = source in ready or stream.has_input
                ready.discard(source)
                executing = self._executing
                for reply in self._collect_frames(ready) if ready else ():
                    stream.send(reply)
                if executing is not None and self._executing is None:
                    on_batch()
                if arrived:
                    self._begin_batches(stream)
                    if stream.ended:
                        return
                self._check_timeout()
        except ModelLostError as error:
            for reply in self._fail_batches(str(error)):
                stream.send(reply)
            raise

    def finish_batches(self, limit_s: float) -> None:
        """Have the model complete what it executes, though the stream has ended: the requests may
        be sent again, and their responses asked for.
        """
        poll = self._poll_model()
        until = time.monotonic() + limit_s
        try:
            while self._may_be_resent and (left_s := until - time.monotonic()) > 0:
                ready = {descriptor for descriptor, _ in poll.poll(left_s * 1000 + 1)}
                for _ in self._collect_frames(ready):
                    pass
        except ModelLostError as error:
            for _ in self._fail_batches(str(error)):
                pass

    @property
    def executes(self) -> bool:
        """Whether the model executes a batch."""
        return self._executing is not None

    def begin_tenure(self) -> None:
        """The next scheduler does not know what sequences there were."""
        self._open.forget_states()

    def forget_runs(self) -> None:
        """The stream has ended, and nothing more is executed for it."""
        for number in self._open.batches:
            self._recent_runs.abandon((self, number))

    @property
    def _may_be_resent(self) -> bool:
        """Whether it executes requests whose senders may send them again."""
        return self._executing is not None and any(self._executing.ids)

    def _poll_model(self) -> select.poll:
        poll = select.poll()
        for descriptor in self._model.file_descriptors():
            poll.register(descriptor, select.POLLIN)
        return poll

    # ---- batches in

    def _cancel_batches(self) -> None:
        """Cancel the batches of an earlier stream."""
        self._executing = self._deadline = self._export = None
        for number, batch in self._open.remove_all():
            self._recent_runs.abandon((self, number))
            for member in batch.open_members():
                self._model.control_request(number, member, pb.MemberControl.CANCEL)

    def _begin_batches(self, stream: BlockingStream) -> None:
        for message in stream.read_messages():
            for reply in self._begin_batch(message):
                stream.send(reply)

    def _begin_batch(self, frame: bytes) -> Iterator[bytes]:
        """Pass controls and a batch to the model; a frame if there is something to respond yet."""
        started_ns = perf_counter_ns()
        message = pb.Batch.FromString(frame)
        for control in self._open.controlled_members(message.controls):
            self._model.control_request(*control)
        if not message.members:
            if message.exported_slots:
                self._export = message
                yield from self._export_states()
            return
        self._begun.begin(message.id)
        if self.has_states:
            yield from self._replay_requests(message)
        batch, requests = self._open.read_batch(message, started_ns)
        reply = batch.next_frame(perf_counter_ns(), executed=not requests)
        if reply is not None:
            yield reply
        if requests:
            yield from self._execute(batch, requests)

    def _execute(self, batch: OpenBatch, requests: Sequence[Request]) -> Iterator[bytes]:
        """Begin a batch in the model; a frame if that fails."""
        self._last_number += 1
        number = self._last_number
        self._open.batches[number] = batch
        self._recent_runs.begin((self, number), batch.ids)
        self._executing = batch
        timeout_s = self._model.execution_timeout_s
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            self._model.begin_batch(number, requests)
        except NereidError as error:
            self._open.release_buffers(batch)
            batch.fail_open_members(error_status_of(error))
            yield from self._advance(number, batch, executed=True)
        batch.begun_ns = perf_counter_ns()

    # ---- states from instance to instance

    def _replay_requests(self, message: pb.Batch) -> Iterator[bytes]:
        """Execute what a batch's sequences have had elsewhere, and wait for that; frames of other
        batches, which are deferred.
        """
        for batch, requests in self._open.read_replays(message):
            yield from self._execute(batch, requests)
            poll = self._poll_model()
            while batch.state is not BatchState.COMPLETE:
                ready = {descriptor for descriptor, _ in poll.poll(self._wait_ms())}
                yield from self._collect_frames(ready)
                self._check_timeout()

    def _export_states(self) -> Iterator[bytes]:
        """The states that were asked for, unless responses may still change them."""
        if self._export is not None and not self.busy:
            message, self._export = self._export, None
            yield self._open.export_states(message)

    # ---- responses out

    def _collect_frames(self, ready: Collection[int]) -> Iterator[bytes]:
        for update in self._model.collect_updates(ready):
            batch = self._open.batches.get(update.batch)
            # Batches of an earlier stream are unknown.
            if batch is not None:
                self._open.add_responses(batch, update.responses)
                if update.rescheduled:
                    self._open.reschedule(batch, update.rescheduled)
                yield from self._advance(update.batch, batch, executed=update.ready_for_next)

    def _advance(self, number: int, batch: OpenBatch, *, executed: bool) -> Iterator[bytes]:
        responded_ns = perf_counter_ns()
        frame = batch.next_frame(responded_ns, executed=executed)
        if batch is self._executing and batch.state is not BatchState.EXECUTING:
            self._executing = self._deadline = None
        if frame is not None:
            yield frame
        if batch.state is BatchState.COMPLETE:
            del self._open.batches[number]
            self._recent_runs.complete((self, number), batch.ids, frame)
            self._record_trace(batch, responded_ns)
            if self._export is not None:
                yield from self._export_states()

    def _record_trace(self, batch: OpenBatch, responded_ns: int, failed: str | None = None) -> None:
        if self._tracer is not None and batch.trace_contexts:
            begun_ns = batch.begun_ns or responded_ns
            times = (batch.started_ns, begun_ns, responded_ns, perf_counter_ns())
            record(self._tracer, self._name, Run([*batch.trace_contexts], *times, failed))

    # ---- the model's end

    def _wait_ms(self) -> float | None:
        if self._deadline is None:
            return None
        return max(0.0, self._deadline - time.monotonic()) * 1000 + 1

    def _is_overdue(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def _check_timeout(self) -> None:
        if self._is_overdue():
            self._model.terminate()
            timeout_s = self._model.execution_timeout_s
            raise ModelLostError(f"the batch was not executed within {timeout_s:g} s")

    def _fail_batches(self, why: str) -> Iterator[bytes]:
        """Respond for a lost model, except to batches that it never saw."""
        overdue = self._is_overdue()
        self._executing = self._deadline = None
        _log.error("instance %s lost its model: %s", self._name, why)
        text = f"Stub process '{self._name}' is not healthy."
        if overdue:
            text = f"Failed to process the request(s) for model '{self._name}', message: {why}"
        error_status = ErrorStatus(Internal.code, text, accepted=True)
        for number, batch in self._open.remove_all():
            self._recent_runs.abandon((self, number))
            self._open.release_buffers(batch)
            if not self._model.may_have_begun(number):
                continue
            batch.fail_open_members(error_status)
            responded_ns = perf_counter_ns()
            frame = batch.next_frame(responded_ns, executed=True)
            if frame is not None:
                yield frame
            self._record_trace(batch, responded_ns, text)
