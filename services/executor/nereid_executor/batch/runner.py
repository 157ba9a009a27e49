"""The one way of a batch through an instance: read, begin, execute, respond, record.

A batch of arrays has one frame of responses; a RequestModel responds to each request in its own
time. An adapter has what differs. It is chosen at the load: array_adapter or request_adapter.
"""

# layout: compiled

from __future__ import annotations

import logging
import time
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, cast

from nereid.backends import ModelLostError, capabilities_of
from nereid.core.errors import ProtocolError
from nereid.pb import nereid_pb2 as pb
from nereid_executor.batch.array_adapter import ArrayAdapter
from nereid_executor.batch.batch_reader import parse_batch, read_batch
from nereid_executor.batch.lifecycle.received_batches import COMPLETE
from nereid_executor.batch.request_adapter import RequestAdapter
from nereid_executor.batch.tracing import record, sampled
from nereid_executor.core.recent_runs import RecentRuns

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from nereid.backends import InstanceSpec, Model, RequestModel
    from nereid.observability.tracing import Tracer
    from nereid_executor.batch.arrays import View
    from nereid_executor.batch.batch_reader import BatchMessage
    from nereid_executor.batch.frame_stream import FrameStream
    from nereid_executor.batch.lifecycle.executions import Executions
    from nereid_executor.batch.lifecycle.received_batches import ReceivedBatch, ReceivedBatches
    from nereid_executor.batch.warmup import WarmupBatch
    from nereid_executor.core.nvtx_ranges import NvtxRanges
    from nereid_executor.core.shared_tensors import OutputLender

    Send = Callable[[bytes], None]
    # Batches with a frame to send, if there is one. A COMPLETE batch has no later frame.
    Progress = Iterable[tuple[ReceivedBatch, bytes | None]]

_log = logging.getLogger(__name__)


class Runner:
    """Executes batches on one loaded model. Only its instance's thread uses it."""

    def __init__(  # noqa: PLR0913 (by keyword)
        self,
        spec: InstanceSpec,
        model: Model | RequestModel,
        *,
        view: View | None = None,
        tracer: Tracer | None = None,
        recent_runs: RecentRuns | None = None,
        executions: Executions | None = None,
        on_freed: Callable[[int], None] | None = None,
        ranges: NvtxRanges | None = None,
    ) -> None:
        """Choose the adapter. No memory is lent for responses before a tenure begins."""
        self.adapter: ArrayAdapter | RequestAdapter
        if capabilities_of(model).executes_requests:
            self.adapter = RequestAdapter(spec, cast("RequestModel", model))
        else:
            arrays = cast("Model", model)
            self.adapter = ArrayAdapter(spec, arrays, view=view, on_freed=on_freed, ranges=ranges)
        self._name = spec.name
        self._tracer = tracer
        self._recent_runs = recent_runs or RecentRuns()
        self._executions = executions
        self._read = parse_batch if self.adapter.needs_members else read_batch
        self.received: ReceivedBatches[Any] = self.adapter.received
        # True if the scheduler may move states of sequences to other instances.
        self.has_states = self.adapter.has_states

    def begin_tenure(self, lender: OutputLender | None) -> None:
        """Begin a tenure, whose scheduler knows nothing of earlier batches and sequences."""
        self.received.begin_session()
        self.adapter.begin_tenure(lender)

    def execute_warmup(self, warmup: WarmupBatch) -> bytes:
        """Execute a batch of a warm-up; return an Executed with all responses."""
        frames: list[bytes] = []
        message = warmup.to_message(parsed=self.adapter.needs_members)
        self._begin(message, perf_counter_ns(), frames.append)
        # In protobuf, concatenated messages parse as one merged message.
        return b"".join(frames)

    def serve(self, stream: FrameStream, stopping: Callable[[], bool]) -> None:
        """Serve until the stream ends, or until `stopping` is true and all batches are complete.

        Raises RpcError; ProtocolError and DecodeError if the scheduler broke the protocol; or
        ModelLostError if the model was lost. The requests that it was executing then have an error.
        The scheduler runs batches that it never saw elsewhere.
        """
        adapter, received, send = self.adapter, self.received, stream.send
        wait = adapter.wait
        self.forget_runs()
        try:
            adapter.begin_stream(stream)
            while not stopping() or received.busy:
                frames, ready = wait(stream, stopping)
                for frame in frames:
                    self.on_frame(frame, send)
                if ready:
                    self.collect(ready, send)
                if not frames and stream.ended:
                    return
        except ModelLostError as error:
            self._fail_batches(str(error), send)
            raise
        finally:
            for batch, reply in adapter.finish_lost():
                self._recent_runs.complete(batch, batch.ids, reply)

    def finish_batches(self, limit_s: float) -> bool:
        """Give the model limit_s seconds to complete what it executes after the stream's end.

        Returns whether it executes nothing any more. RecentRuns keeps the responses.
        """
        received, adapter = self.received, self.adapter
        until = time.monotonic() + limit_s
        try:
            while (left_s := until - time.monotonic()) > 0:
                batch = received.oldest()
                if batch is None or not any(batch.ids):
                    break
                self.collect(adapter.wait_for_model(left_s), _drop)
        except ModelLostError as error:
            self._fail_batches(str(error), _drop)
        return not received.executing

    def forget_runs(self) -> None:
        """Tell RecentRuns that the begun batches run no more, since their stream has ended."""
        for batch in self.received.begun():
            self._recent_runs.abandon(batch)

    def on_frame(self, frame: bytes, send: Send) -> None:
        """Handle a frame of the scheduler; send the frames that are due at once."""
        started_ns = perf_counter_ns()
        message = self._read(frame)
        if message.controls:
            self.adapter.control_requests(message.controls)
        if message.requests:
            if self.received.read(message.id):
                self._begin(message, started_ns, send)
        elif message.exported_slots:
            if not self.has_states:
                raise ProtocolError("states are asked for of a model that gives none away")
            self.received.begin_export(message.id, message.exported_slots)
            self._export_states(send)
        elif not message.controls:
            raise ProtocolError(f"batch {message.id} has no requests")

    def _begin(self, message: BatchMessage, started_ns: int, send: Send) -> None:
        adapter = self.adapter
        for batch in adapter.open_batches(message, started_ns):
            if batch.id:
                if message.traced and self._tracer is not None:
                    batch.trace_contexts = sampled(message.requests)
                self._recent_runs.begin(batch, batch.ids)
            self._advance(adapter.execute(batch), send)
            # No scheduler has sent a replay or a warm-up.
            while not batch.id and batch.state is not COMPLETE:
                self.collect(adapter.wait_for_model(), send)

    def collect(self, ready: Collection[int], send: Send) -> None:
        """Send the frames that are due to the model's progress. ready: from the adapter."""
        self._advance(self.adapter.collect(ready), send)

    def _advance(self, progress: Progress, send: Send) -> None:
        received = self.received
        for batch, frame in progress:
            if batch.state is not COMPLETE:
                if frame is not None:
                    send(frame)
                continue
            if batch.id:
                self._recent_runs.complete(batch, batch.ids, frame)
            try:
                if frame is not None:
                    send(frame)
            finally:
                received.end(batch)
            if batch.id:
                self._record(batch, 0 if frame is None else len(frame))
            if received.export is not None:
                self._export_states(send)

    def _record(self, batch: ReceivedBatch, reply_bytes: int) -> None:
        started_ns, responded_ns, ended_ns = batch.started_ns, batch.responded_ns, batch.ended_ns
        begun_ns = batch.begun_ns or responded_ns
        if self._executions is not None:
            self._executions.record(
                perf_counter_ns(),
                started_ns,
                batch.id,
                len(batch.ids),
                begun_ns - started_ns,
                responded_ns - begun_ns,
                ended_ns - responded_ns,
                batch.frame_bytes,
                reply_bytes,
            )
        if batch.trace_contexts and self._tracer is not None:
            times = (started_ns, begun_ns, responded_ns, ended_ns)
            record(self._tracer, self._name, batch.trace_contexts, times, batch.failure)

    def _export_states(self, send: Send) -> None:
        export = self.received.due_export()
        if export is not None:
            number, slots = export
            reply = pb.Executed(id=number)
            self.adapter.export_states(slots, reply)
            send(reply.SerializeToString())

    def _fail_batches(self, why: str, send: Send) -> None:
        _log.error("instance %s lost its model: %s", self._name, why)
        self.forget_runs()
        try:
            for batch, frame in self.adapter.fail_batches(why):
                if frame is not None:
                    send(frame)
                self.received.end(batch)
                if batch.id:
                    self._record(batch, 0 if frame is None else len(frame))
        finally:
            self.received.lose_all()


def _drop(_frame: bytes) -> None:
    pass
