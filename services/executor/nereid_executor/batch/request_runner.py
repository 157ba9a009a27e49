"""Runner for models that execute requests, between an instance's stream and the model."""

from __future__ import annotations

import logging
import select
import time
from itertools import count
from time import perf_counter_ns
from typing import TYPE_CHECKING

from nereid.backends import ModelLostError
from nereid.core.errors import Internal, NereidError
from nereid.core.wire.messages import ErrorStatus, error_status_of
from nereid.pb import nereid_pb2 as pb
from nereid_executor.batch.lifecycle.executions import NO_EXECUTIONS
from nereid_executor.batch.lifecycle.received_batches import COMPLETE
from nereid_executor.batch.open_batches import OpenBatches
from nereid_executor.batch.tracing import Run, record
from nereid_executor.core.recent_runs import RecentRuns

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from nereid.backends import InstanceSpec, Request, RequestModel
    from nereid.observability.tracing import Tracer
    from nereid.rpc import BlockingStream
    from nereid_executor.batch.lifecycle.executions import Executions
    from nereid_executor.batch.open_batches import OpenBatch
    from nereid_executor.batch.warmup import WarmupBatch

_log = logging.getLogger(__name__)


class RequestRunner:
    """Executes batches on one loaded model. Only its instance's thread uses it."""

    def __init__(
        self,
        spec: InstanceSpec,
        model: RequestModel,
        tracer: Tracer | None = None,
        recent_runs: RecentRuns | None = None,
        *,
        executions: Executions = NO_EXECUTIONS,
    ) -> None:
        self._executions = executions
        self._name = spec.name
        self._model = model
        self._tracer = tracer
        self._recent_runs = recent_runs or RecentRuns()
        self._open = OpenBatches(
            spec.config,
            spec.version_path.parent,
            spec.name,
            decoupled=spec.config.model_transaction_policy.decoupled,
            traced=tracer is not None,
        )
        self.received, self.writer = self._open.received, self._open.writer
        # True if implicit state of sequences can be exported and restored.
        self.has_states, self.forget_sequences = self._open.has_states, self._open.forget_sequences
        # Numbers for the model. The next scheduler uses the last scheduler's numbers again.
        self._numbers = count(1)
        # Monotonic time by which the executing batch must end; `None` without a limit.
        self._deadline: float | None = None

    def execute(self, frame: bytes) -> bytes:
        """Execute a Batch that no scheduler has sent; return an Executed with all responses."""
        return self._execute_message(pb.Batch.FromString(frame))

    def execute_warmup(self, warmup: WarmupBatch) -> bytes:
        """Execute a batch of a warm-up; return an Executed with all responses."""
        return self._execute_message(warmup.to_message())

    def _execute_message(self, message: pb.Batch) -> bytes:
        replies = list(self._begin_batch(message, perf_counter_ns()))
        poll = self._poll_model()
        while self.received.busy:
            replies += self._collect_frames({descriptor for descriptor, _ in poll.poll()})
        # In protobuf, concatenated messages parse as one merged message.
        return b"".join(replies)

    def serve(self, stream: BlockingStream, stopping: Callable[[], bool]) -> None:
        """Serve until the stream ends, or until `stopping` is true and all batches are complete.

        Raises ProtocolError, or ModelLostError if the model was lost. The requests that it was
        executing then have an error. The scheduler runs batches that it never saw elsewhere.
        """
        poll = self._poll_model()
        source = stream.fileno()
        poll.register(source, select.POLLIN)
        try:
            self._cancel_batches()
            while self.received.busy or not stopping():
                wait_ms = 0 if stream.has_input else self._wait_ms()
                ready = {descriptor for descriptor, _ in poll.poll(wait_ms)}
                # Only readable descriptors are collected, which saves a system call for each other
                # one.
                arrived = source in ready or stream.has_input
                ready.discard(source)
                for reply in self._collect_frames(ready) if ready else ():
                    stream.send(reply)
                if arrived:
                    for frame in stream.read_messages():
                        for reply in self._on_frame(frame):
                            stream.send(reply)
                    if stream.ended:
                        return
                self._check_timeout()
        except ModelLostError as error:
            for reply in self._fail_batches(str(error)):
                stream.send(reply)
            raise

    def finish_batches(self, limit_s: float) -> None:
        """Give the model limit_s seconds to complete what it executes after the stream's end."""
        poll = self._poll_model()
        until = time.monotonic() + limit_s
        try:
            while (left_s := until - time.monotonic()) > 0:
                batch = self.received.oldest()
                if batch is None or not any(batch.ids):
                    return
                ready = {descriptor for descriptor, _ in poll.poll(left_s * 1000 + 1)}
                for _ in self._collect_frames(ready):
                    pass
        except ModelLostError as error:
            for _ in self._fail_batches(str(error)):
                pass

    def forget_runs(self) -> None:
        """Tell RecentRuns that the begun batches run no more, since their stream has ended."""
        for batch in self.received.begun():
            self._recent_runs.abandon(batch)

    def _poll_model(self) -> select.poll:
        poll = select.poll()
        for descriptor in self._model.file_descriptors():
            poll.register(descriptor, select.POLLIN)
        return poll

    def _cancel_batches(self) -> None:
        for batch in self.received.lose_all():
            self._recent_runs.abandon(batch)
            for member in batch.open_members():
                self._model.control_request(batch.number, member, pb.MemberControl.CANCEL)

    def _on_frame(self, frame: bytes) -> Iterator[bytes]:
        started_ns = perf_counter_ns()
        message = pb.Batch.FromString(frame)
        for batch, member, kind in self._open.controlled_members(message.controls):
            self._model.control_request(batch.number, member, kind)
        if message.members:
            if self.received.read(message.id):
                yield from self._begin_batch(message, started_ns)
        elif message.exported_slots:
            self._open.begin_export(message)
            if (states := self._open.export_frame()) is not None:
                yield states

    def _begin_batch(self, message: pb.Batch, started_ns: int) -> Iterator[bytes]:
        for replay, requests in self._open.begin_replays(message, self._numbers.__next__):
            yield from self._execute(replay, requests)
            yield from self._await_replay(replay)
        batch, requests = self._open.begin_batch(message, next(self._numbers), started_ns)
        yield from self._execute(batch, requests)

    def _await_replay(self, replay: OpenBatch) -> Iterator[bytes]:
        poll = self._poll_model()
        while replay.state is not COMPLETE:
            ready = {descriptor for descriptor, _ in poll.poll(self._wait_ms())}
            yield from self._collect_frames(ready)
            self._check_timeout()

    def _execute(self, batch: OpenBatch, requests: Sequence[Request]) -> Iterator[bytes]:
        """Begin a batch in the model; yield a frame if that fails or a request is malformed."""
        self._recent_runs.begin(batch, batch.ids)
        yield from self._advance(batch, executed=not requests)
        if not requests:
            return
        timeout_s = self._model.execution_timeout_s
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            self._model.begin_batch(batch.number, requests)
        except NereidError as error:
            self._open.release_buffers(batch)
            batch.fail_open_members(error_status_of(error))
            yield from self._advance(batch, executed=True)
        batch.begun_ns = perf_counter_ns()

    def _collect_frames(self, ready: Collection[int]) -> Iterator[bytes]:
        for update in self._model.collect_updates(ready):
            batch = self.received.find(update.batch)
            # `None` means that the batch belongs to an earlier stream.
            if batch is not None:
                self._open.add_responses(batch, update.responses)
                if update.rescheduled:
                    self._open.reschedule(batch, update.rescheduled)
                yield from self._advance(batch, executed=update.ready_for_next)

    def _advance(self, batch: OpenBatch, *, executed: bool) -> Iterator[bytes]:
        responded_ns = perf_counter_ns()
        frame = batch.next_frame(self.received, responded_ns, executed=executed)
        if frame is not None:
            yield frame
        if batch.state is COMPLETE:
            self.received.end(batch)
            self._recent_runs.complete(batch, batch.ids, frame)
            self._record_execution(batch, responded_ns, 0 if frame is None else len(frame))
            self._record_trace(batch, responded_ns)
            if (states := self._open.export_frame()) is not None:
                yield states

    def _record_execution(self, batch: OpenBatch, responded_ns: int, reply_bytes: int = 0) -> None:
        if batch.id:
            begun_ns, now_ns = batch.begun_ns or responded_ns, perf_counter_ns()
            started_ns = batch.started_ns
            times = begun_ns - started_ns, responded_ns - begun_ns, now_ns - responded_ns
            size = len(batch.ids)
            self._executions.record(now_ns, started_ns, batch.id, size, *times, 0, reply_bytes)

    def _record_trace(self, batch: OpenBatch, responded_ns: int, failed: str | None = None) -> None:
        if self._tracer is not None and batch.trace_contexts:
            begun_ns = batch.begun_ns or responded_ns
            times = (batch.started_ns, begun_ns, responded_ns, perf_counter_ns())
            record(self._tracer, self._name, Run([*batch.trace_contexts], *times, failed))

    def _wait_ms(self) -> float | None:
        if self._deadline is None or not self.received.executing:
            return None
        return max(0.0, self._deadline - time.monotonic()) * 1000

    def _is_overdue(self) -> bool:
        return self._wait_ms() == 0

    def _check_timeout(self) -> None:
        if self._is_overdue():
            self._model.terminate()
            timeout_s = self._model.execution_timeout_s
            raise ModelLostError(f"the batch was not executed within {timeout_s:g} s")

    def _fail_batches(self, why: str) -> Iterator[bytes]:
        """Yield error responses for a lost model's batches, but not for batches it never saw."""
        _log.error("instance %s lost its model: %s", self._name, why)
        text = f"Stub process '{self._name}' is not healthy."
        if self._is_overdue():
            text = f"Failed to process the request(s) for model '{self._name}', message: {why}"
        error_status = ErrorStatus(Internal.code, text, accepted=True)
        try:
            for batch in self.received.begun():
                self._recent_runs.abandon(batch)
                self._open.release_buffers(batch)
                if not self._model.may_have_begun(batch.number):
                    continue
                batch.fail_open_members(error_status)
                responded_ns = perf_counter_ns()
                frame = batch.next_frame(self.received, responded_ns, executed=True)
                if frame is not None:
                    yield frame
                self.received.end(batch)
                self._record_execution(batch, responded_ns)
                self._record_trace(batch, responded_ns, text)
        finally:
            self.received.lose_all()
