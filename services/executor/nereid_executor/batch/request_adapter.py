"""Executes batches on a model that gets requests one by one, and responds in its own time."""

from __future__ import annotations

import select
import time
from itertools import count
from time import perf_counter_ns
from typing import TYPE_CHECKING

from nereid.backends import ModelLostError
from nereid.core.errors import Internal, NereidError, worker_lost_message
from nereid.core.wire.messages import ErrorStatus, error_status_of
from nereid.pb import nereid_pb2 as pb
from nereid_executor.batch.lifecycle.received_batches import COMPLETE
from nereid_executor.batch.open_batches import OpenBatch, OpenBatches, Replay

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from nereid.backends import InstanceSpec, RequestModel
    from nereid_executor.batch.batch_reader import BatchMessage
    from nereid_executor.batch.frame_stream import FrameStream
    from nereid_executor.batch.lifecycle.received_batches import ReceivedBatch
    from nereid_executor.core.shared_tensors import OutputLender

    Progress = Iterable[tuple[OpenBatch, bytes | None]]


class RequestAdapter:
    """Executes a runner's batches on a RequestModel. It does what ArrayAdapter does."""

    def __init__(self, spec: InstanceSpec, model: RequestModel) -> None:
        self._name = spec.name
        self._model = model
        self._open = OpenBatches(spec.config, spec.version_path.parent, spec.name)
        self.received = self._open.received
        self.has_states, self.needs_members = self._open.has_states, self._open.needs_members
        # Numbers for the model. The next scheduler uses the last scheduler's numbers again.
        self._numbers = count(1)
        # Monotonic time by which the executing batch must end; `None` without a limit.
        self._deadline: float | None = None
        self._poll = select.poll()

    def begin_tenure(self, lender: OutputLender | None) -> None:
        """Forget all sequences, and lend memory for responses from this lender."""
        self._open.writer.lender = lender
        self._open.forget_sequences()

    def begin_stream(self, stream: FrameStream) -> None:
        """Cancel the batches of an earlier stream, and wait for this one."""
        for batch in self.received.lose_all():
            for model_index in batch.open_requests():
                self._model.control_request(batch.number, model_index, pb.MemberControl.CANCEL)
        self._poll = self._poll_model()
        self._poll.register(stream.fileno(), select.POLLIN)

    def wait(
        self,
        stream: FrameStream,
        stopping: Callable[[], bool],  # noqa: ARG002 - controls come until all requests have ended
    ) -> tuple[Sequence[bytes], Collection[int]]:
        """Wait for frames or for the model; return the frames and the readable descriptors.

        Raises ModelLostError if the model was too slow.
        """
        self._check_timeout()
        wait_ms = 0 if stream.has_input else self._wait_ms()
        # Only readable descriptors are collected, which saves a system call for each other one.
        ready = {descriptor for descriptor, _ in self._poll.poll(wait_ms)}
        source = stream.fileno()
        arrived = source in ready or stream.has_input
        ready.discard(source)
        return stream.read_messages() if arrived else (), ready

    def wait_for_model(self, limit_s: float | None = None) -> Collection[int]:
        """Wait for the model alone; return the readable descriptors."""
        self._check_timeout()
        wait_ms = self._wait_ms() if limit_s is None else limit_s * 1000 + 1
        return {descriptor for descriptor, _ in self._poll_model().poll(wait_ms)}

    def _poll_model(self) -> select.poll:
        poll = select.poll()
        for descriptor in self._model.file_descriptors():
            poll.register(descriptor, select.POLLIN)
        return poll

    def open_batches(self, message: BatchMessage, started_ns: int) -> Iterator[OpenBatch]:
        """Begin a message's batches: replays, each to be complete before the next, and its own."""
        yield from self._open.begin_replays(message, self._numbers.__next__)
        yield self._open.begin_batch(message, next(self._numbers), started_ns)

    def execute(self, batch: ReceivedBatch) -> Progress:
        """Give a begun batch to the model. Malformed requests get their errors."""
        assert isinstance(batch, OpenBatch), "a batch of another adapter"
        requests, batch.requests = batch.requests, []
        yield from self._advance(batch, executed=not requests)
        if not requests:
            return
        timeout_s = self._model.execution_timeout_s
        self._deadline = None
        # A warm-up has no limit.
        if timeout_s is not None and (batch.id or type(batch) is Replay):
            self._deadline = time.monotonic() + timeout_s
        try:
            self._model.begin_batch(batch.number, requests)
        except NereidError as error:
            self._open.release_buffers(batch)
            batch.fail_open_requests(error_status_of(error))
            yield from self._advance(batch, executed=True)
        else:
            batch.begun_ns = perf_counter_ns()

    def collect(self, ready: Collection[int]) -> Progress:
        """Yield the model's progress. Raises ModelLostError after the last progress."""
        for update in self._model.collect_updates(ready):
            batch = self.received.find(update.batch)
            # `None` means that the batch belongs to an earlier stream.
            if batch is not None:
                self._open.add_responses(batch, update.responses)
                if update.rescheduled:
                    self._open.reschedule(batch, update.rescheduled)
                yield from self._advance(batch, executed=update.ready_for_next)

    def _advance(self, batch: OpenBatch, *, executed: bool) -> Progress:
        frame = batch.next_frame(self.received, perf_counter_ns(), executed=executed)
        return [(batch, frame)] if frame is not None or batch.state is COMPLETE else ()

    def control_requests(self, controls: Iterable[pb.MemberControl]) -> None:
        """Cancel, pause or resume requests; ProtocolError for a batch that has not come."""
        for batch, model_index, kind in self._open.controlled_requests(controls):
            self._model.control_request(batch.number, model_index, kind)

    def export_states(self, slots: Iterable[int], reply: pb.Executed) -> None:
        """Add the states of slots to a reply, as far as they fit, and forget them."""
        self._open.export_states(slots, reply)

    def finish_lost(self) -> Progress:
        """Return nothing: the model's batches are cancelled once there is another stream."""
        return ()

    def fail_batches(self, why: str) -> Progress:
        """Fail the begun batches of a lost model, except for those that it never saw."""
        text = worker_lost_message(self._name)
        if self._wait_ms() == 0:
            text = f"Failed to process the request(s) for model '{self._name}', message: {why}"
        error_status = ErrorStatus(Internal.code, text, accepted=True)
        for batch in self.received.begun():
            self._open.release_buffers(batch)
            if self._model.may_have_begun(batch.number):
                batch.failure = text
                batch.fail_open_requests(error_status)
                yield from self._advance(batch, executed=True)

    def _wait_ms(self) -> float | None:
        if self._deadline is None or not self.received.executing:
            return None
        return max(0.0, self._deadline - time.monotonic()) * 1000

    def _check_timeout(self) -> None:
        if self._wait_ms() == 0:
            self._model.terminate()
            timeout_s = self._model.execution_timeout_s
            raise ModelLostError(f"the batch was not executed within {timeout_s:g} s")
