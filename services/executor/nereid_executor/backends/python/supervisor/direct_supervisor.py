"""The executor's side of a worker that serves its instance's stream itself."""

from __future__ import annotations

import json
import select
import time
from typing import TYPE_CHECKING, Any, Final

from nereid.backends import ModelLostError
from nereid.core.errors import Internal, ProtocolError, worker_lost_message
from nereid.core.methods import CONFINED_KEY, EXECUTE_PATH, INFER_PATH
from nereid.core.wire.messages import ErrorStatus
from nereid.rpc import RpcError, Status, open_for_other_process
from nereid_executor.backends.python.sandbox.given_connections import refuse_connections
from nereid_executor.backends.python.worker_site.nereid_worker.protocol import wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.backends import InstanceSpec
    from nereid_executor.backends.direct_serving import StreamContext
    from nereid_executor.backends.python.supervisor.reported_spans import ReportedSpans
    from nereid_executor.backends.python.supervisor.worker_process import WorkerProcess

_STREAM_FRAMES: Final = frozenset(
    (
        wire.SERVED,
        wire.REQUEST_OUTPUT_BUFFER,
        wire.RETURN_OUTPUT_BUFFERS,
        wire.TRACED,
        wire.REQUEST_LINK,
    )
)


class DirectSupervisor:
    """Supervises one stream of one worker. Only the instance's thread uses it."""

    def __init__(
        self,
        spec: InstanceSpec,
        worker: WorkerProcess,
        context: StreamContext,
        spans: ReportedSpans,
    ) -> None:
        self._spec = spec
        self._worker = worker
        self._context = context
        self._spans = spans
        # The content of the worker's SERVED frame; empty until the stream has ended.
        self._outcome: list[Any] = []
        self._stop_sent = False
        # Time (time.monotonic) by which the stream must end. None until the scheduler is lost.
        self._until: float | None = None

    def run(self, on_wake: Callable[[], None]) -> None:
        """Supervise the stream until it has ended.

        on_wake sends the worker the messages that other threads have queued. Raises ModelLostError
        if the worker has ended or was too slow to stop; its begun batch is then reported. Raises
        RpcError, ProtocolError, or Internal if the worker cannot serve the stream.
        """
        worker, context = self._worker, self._context
        try:
            with worker.loss_reported():
                if worker.is_confined:
                    self._open_stream()
                worker.send_json(wire.SERVE, self._stream_settings())
                self._supervise(on_wake)
        except ModelLostError:
            text = worker_lost_message(self._spec.name)
            error_status = ErrorStatus(Internal.code, text, accepted=True)
            on_lost = context.on_model_lost
            on_lost(context.number, worker.last_batch, error_status)
            raise
        (outcome,) = self._outcome or [None]
        if isinstance(outcome, str):
            raise Internal(f"the worker of instance '{self._spec.name}' cannot serve: {outcome}")
        if outcome is not None:
            status, message = outcome
            if status is None:
                raise ProtocolError(message)
            raise RpcError(Status(status), message)

    def _open_stream(self) -> None:
        """Give the confined worker a connection that can serve its instance, and nothing else."""
        context = self._context
        with open_for_other_process(
            context.address,
            EXECUTE_PATH,
            metadata=[*context.metadata, (CONFINED_KEY, "1")],
            timeout_s=context.times.connect_s,
        ) as connected:
            if self._worker.has_unix_sockets:
                refuse_connections(connected)
            self._worker.send_descriptor(connected.fileno())

    def _stream_settings(self) -> dict[str, Any]:
        context, spec = self._context, self._spec
        confined = self._worker.is_confined
        return {
            "address": context.address,
            "metadata": [] if confined else context.metadata,
            "descriptors": self._worker.descriptors_for_worker,
            "connect_s": context.times.connect_s,
            "config": spec.config.SerializeToString().hex(),
            "instance": spec.name,
            "version": str(spec.version),
            "model_path": str(spec.version_path.parent),
            "has_segments": context.lender is not None and not confined,
            "traced": context.tracer is not None,
            "number": context.instance_number,
            "has_links": context.link_domain is not None and not confined,
        }

    def _supervise(self, on_wake: Callable[[], None]) -> None:
        worker = self._worker
        poll = select.poll()
        for descriptor in worker.descriptors:
            poll.register(descriptor, select.POLLIN)
        while not self._outcome:
            self._send_stop()
            left_s = None if self._until is None else self._until - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise ModelLostError("it executes a batch that nobody waits for")
            wait_ms = None if left_s is None else left_s * 1000 + 1
            ready = {descriptor for descriptor, _ in poll.poll(wait_ms)}
            for frame in worker.arrived_frames(ready):
                self._on_frame(*frame)
            if worker.calls.fileno() in ready:
                on_wake()

    def _send_stop(self) -> None:
        worker, context = self._worker, self._context
        if context.abandoned.is_set() and self._until is None:
            self._stop_sent = True
            running = worker.running_requests
            # The worker may finish its batch, because another scheduler may ask for the responses.
            # A confined worker is not believed which requests it has run, so that they run again.
            has_grace = not running or (any(running) and not worker.is_confined)
            grace_s = context.times.abandoned_s if has_grace else 0.0
            self._until = time.monotonic() + grace_s
            worker.send_json(wire.STOP, True)
        elif context.stopping.is_set() and not self._stop_sent:
            self._stop_sent = True
            worker.send_json(wire.STOP, False)

    def _on_frame(self, kind: int, body: bytearray) -> None:
        worker, context = self._worker, self._context
        if kind == wire.RESPONSES:
            raise wire.WireError("responses, which belong on its stream")
        if kind == wire.KEPT:
            # A confined worker could keep responses for other models' requests.
            if not worker.is_confined:
                context.recent_runs.keep(*wire.read_kept(body))
            return
        if kind not in _STREAM_FRAMES:
            worker.on_frame(kind, body)
        else:
            try:
                message = json.loads(bytes(body))
                if kind == wire.SERVED:
                    self._outcome.append(message)
                elif kind == wire.TRACED:
                    self._spans.record(context.tracer, *message)
                elif kind == wire.RETURN_OUTPUT_BUFFERS:
                    self._end_grants(message)
                elif kind == wire.REQUEST_LINK:
                    worker.send_json(wire.LINK, self._new_link())
                else:
                    self._send_buffer(*message)
            except (ValueError, TypeError, RecursionError) as error:
                raise wire.WireError("malformed message") from error

    def _new_link(self) -> dict[str, Any] | None:
        """Return a LINK message with a credential for one link; `None` refuses the link."""
        context = self._context
        domain = context.link_domain
        if domain is None or self._worker.is_confined:
            return None
        credentials = context.credentials
        metadata = [] if credentials is None else [*credentials(INFER_PATH)]
        return {"metadata": metadata, "domain": domain}

    def _send_buffer(self, number: int, size_bytes: int, granted: bool) -> None:
        lender, buffer = self._context.lender, None
        if lender is not None and not self._worker.is_confined:
            allocate = lender.grant_buffer if granted else lender.allocate_buffer
            buffer = allocate(int(size_bytes))
        self._worker.send_json(wire.OUTPUT_BUFFER, [int(number), buffer])

    def _end_grants(self, segment_names: list[str]) -> None:
        lender = self._context.lender
        if lender is not None:
            for segment_name in segment_names:
                lender.end_grant(segment_name)
