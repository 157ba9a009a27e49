"""Serves an instance's stream in the thread of its worker that runs the model.

Only models that run in the executor's Python and are not decoupled are served in this way.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections import deque
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from nereid.bounded_cache import BoundedCache
from nereid.core.errors import ProtocolError
from nereid.core.methods import EXECUTE_PATH
from nereid.model_config.reshapes import output_reshapes
from nereid.pb import model_config_pb2
from nereid.rpc import BlockingStream, RpcError
from nereid.shm.segments import SHM_THRESHOLD_BYTES
from nereid_executor.backends.python.direct.kept_responses import KeptResponses
from nereid_executor.backends.python.direct.output_segments import OutputSegments
from nereid_executor.backends.python.direct.response_queue import ResponseQueue
from nereid_executor.backends.python.direct.scheduler_calls import (
    SchedulerCalls,
    SchedulerPath,
)
from nereid_executor.backends.python.messages.request_metadata import (
    deadline_us,
    meta_of,
    spec_json,
    tensors_of,
)
from nereid_executor.backends.python.messages.response_heads import ResponseHeads
from nereid_executor.backends.python.worker_site.nereid_worker.protocol import wire
from nereid_executor.backends.python.worker_site.nereid_worker.protocol.channel import (
    is_forked,
)
from nereid_executor.backends.python.worker_site.nereid_worker.runtime import received_requests
from nereid_executor.backends.python.worker_site.nereid_worker.runtime.execution import (
    BatchExecution,
)
from nereid_executor.batch.batch_reader import read_batch
from nereid_executor.batch.lifecycle.received_batches import COMPLETE, EXECUTING
from nereid_executor.batch.open_batches import OpenBatches
from nereid_executor.batch.responses import MAX_EXECUTED_BYTES
from nereid_executor.batch.tracing import sampled

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from nereid.backends import Request, RequestSpec
    from nereid_executor.backends.python.direct.response_queue import MemberResponses
    from nereid_executor.backends.python.worker_site.nereid_worker.connection import shared_tensors
    from nereid_executor.backends.python.worker_site.nereid_worker.runtime.serving import (
        Serving,
    )
    from nereid_executor.batch.arrays import Piece
    from nereid_executor.batch.batch_reader import BatchMessage
    from nereid_executor.batch.open_batches import OpenBatch

_MAX_SPECS: Final = 1024


class DirectServer:
    """Serves one stream; implements `StreamServer` and `ReplySink` of nereid_worker.runtime.

    The main thread runs serve(). The thread that reads the executor's frames calls stop(),
    on_link() and on_output_buffer(). Threads of the model send replies, poll for controls, and make
    calls.
    """

    def __init__(self, serving: Serving, message: dict[str, Any], stopped: threading.Event) -> None:
        config = model_config_pb2.ModelConfig.FromString(bytes.fromhex(message["config"]))
        self._serving = serving
        self._runner, self._connection = serving.runner, serving.connection
        self._about = message
        self._receiver: int | None = message["descriptors"]
        if self._receiver is not None:
            os.set_inheritable(self._receiver, False)
        self._stopped = stopped
        self._has_segments: bool = message["has_segments"]
        self._segments = OutputSegments(
            partial(self._connection.notify, wire.REQUEST_OUTPUT_BUFFER),
            serving.reader.in_thread,
            partial(self._connection.notify, wire.RETURN_OUTPUT_BUFFERS),
        )
        self._heads = ResponseHeads(config.name, message["version"], output_reshapes(config))
        self._specs: BoundedCache[RequestSpec, received_requests.RequestSpecEntry] = BoundedCache(
            _MAX_SPECS
        )
        # Batches keep the numbers that the scheduler gives them. Controls and replies contain these
        # numbers.
        self._open = OpenBatches(
            config,
            Path(message["model_path"]),
            message["instance"],
        )
        self._received = self._open.received
        # Protocol error that a thread of the model found while execute() ran. The serving thread
        # raises it later.
        self._broken: ProtocolError | DecodeError | None = None
        self._stream: BlockingStream | None = None
        channel = self._connection.channel
        self._kept = KeptResponses(
            lambda ids, reply: channel.send(wire.KEPT, wire.kept_parts(ids, reply))
        )
        # Frames that are read from the stream and not yet handled.
        self._read_ahead: deque[bytes] = deque()
        self._queue = ResponseQueue(self._deliver_responses)
        self._calls = SchedulerCalls(
            self._open_path,
            lambda: self._connection.notify(wire.REQUEST_LINK, None),
            message["connect_s"],
            must_not_wait=serving.reader.in_thread,
        )

    def _open_path(self, link: dict[str, Any], on_lost: Callable[[], None]) -> SchedulerPath:
        message, segments = self._about, self._connection.segments
        return SchedulerPath(message["address"], link, message["number"], segments, on_lost=on_lost)

    def stop(self, *, cut: bool) -> None:
        """Have serve() return once all batches have their responses.

        The reading thread calls this. cut: the scheduler is lost, and with it the stream.
        """
        if cut:
            self._kept.on_stream_lost()
            self._calls.close(cut=True)
        # A batch that arrives at this moment is lost with the stream. The scheduler sends its
        # requests to another instance.
        if self._stream is not None and (cut or not self._received.busy):
            self._stream.cut()
        self._queue.wake()

    def on_link(self, message: dict[str, Any] | None) -> None:
        """Handle the executor's response to REQUEST_LINK. The reading thread calls this."""
        self._calls.on_link(message)

    def on_output_buffer(self, number: int, buffer: list[Any] | None) -> None:
        """Handle a response to REQUEST_OUTPUT_BUFFER in the reading thread, or raise WireError."""
        self._segments.on_output_buffer(number, buffer)

    def serve(self) -> list[Any] | None:
        """Serve until the stream ends or stop() is called.

        Returns None, or a status (None: the scheduler broke the protocol) and a message.
        """
        try:
            self._stream = BlockingStream(
                self._about["address"],
                EXECUTE_PATH,
                metadata=[(key, value) for key, value in self._about["metadata"]],
                timeout_s=self._about["connect_s"],
                # The executor watches this process, so the stream needs no keepalive of its own.
                background_keepalive=False,
                opened=self._opened_stream(),
            )
            if self._about["has_links"]:
                self._connection.own_calls = self._calls.calls
            self._serve_batches(self._stream)
        except RpcError as error:
            self._kept.on_stream_lost()
            return None if self._stopped.is_set() else [int(error.status), error.message]
        except (ProtocolError, DecodeError) as broken:
            self._kept.on_stream_lost()
            return [None, str(broken)]
        finally:
            self._connection.own_calls = lambda: None
            self._calls.close(cut=False)
            self._kept.end()
            self._close_stream()
            self._segments.close()
            self._queue.close()
        return None

    def _opened_stream(self) -> socket.socket | None:
        """Return the connection that the executor gave to this confined process, if it is one."""
        if self._receiver is None:
            return None
        with socket.socket(fileno=os.dup(self._receiver)) as receiver:
            _, descriptors, _, _ = socket.recv_fds(receiver, 1, 1)
        return socket.socket(fileno=descriptors[0])

    def _close_stream(self) -> None:
        # In serve() itself, compiled code would take the attribute for set where connecting failed.
        if self._stream is not None:
            self._stream.close()

    def _serve_batches(self, stream: BlockingStream) -> None:
        while self._received.busy or not self._stopped.is_set():
            if self._received.busy and not self._read_ahead:
                self._serve_deferred(stream)
                if stream.ended:
                    return
                if not self._read_ahead and self._stopped.is_set():
                    continue
            frame = self._read_ahead.popleft() if self._read_ahead else stream.receive()
            if frame is None:
                return
            self._on_frame(frame, stream)

    def _serve_deferred(self, stream: BlockingStream) -> None:
        while self._received.busy and not self._read_ahead and not stream.ended:
            self._queue.wait_for(stream)
            self._queue.deliver_all()
            self._read_ahead += stream.read_messages()

    def _on_frame(self, frame: bytes, stream: BlockingStream) -> None:
        """Execute the batch in a frame and send its responses, or handle the frame's controls."""
        started_ns = perf_counter_ns()
        message = read_batch(frame)
        if not message.requests:
            self._on_controls(message)
            return
        self._received.read(message.id)
        number, executions = message.id, self._serving.executions
        execution = BatchExecution(number, self, self._poll_controls, decoupled=False)
        batch = self._open.begin_batch(message, number, started_ns, execution=execution)
        self._add_requests(execution, batch.requests)
        executions.note_begun(number)
        executions.note_running(batch.ids)
        batch.begun_ns = perf_counter_ns()
        self._queue.unlock_stream()
        replies = self._runner.execute(execution)
        self._queue.lock_stream()
        executed_ns = perf_counter_ns()
        has_senders = bool(execution.held)
        execution.mark_responded(replies)
        execution.release_requests()
        batch.add_final_responses(self._write_replies(batch, replies))
        if has_senders:
            self._queue.deliver_all()
        response = batch.next_frame(self._received, executed_ns, executed=True)
        if execution.inputs is not None:
            # The inputs' owner reuses their memory as soon as it has the response.
            execution.inputs.copy_held()
        if response is not None:
            self._kept.add(batch.ids, response)
            executions.note_running(())
            stream.send(response)
        if batch.state is COMPLETE:
            self._received.end(batch)
        if self._broken is not None:
            raise self._broken
        if message.traced and self._about["traced"]:
            contexts = [context.hex() for context in sampled(message.requests)]
            times = [started_ns, batch.begun_ns, executed_ns, perf_counter_ns()]
            self._connection.notify(wire.TRACED, [contexts, times])

    def _add_requests(self, execution: BatchExecution, requests: Sequence[Request]) -> None:
        for member, request in enumerate(requests):
            spec = request.spec
            entry = self._specs.get(spec) or self._remember_spec(spec)
            self._runner.add_request(
                execution, member, entry, tensors_of(request), meta_of(request)
            )
        if latest_us := deadline_us(requests):
            execution.deadline_ns = time.monotonic_ns() + latest_us * 1000

    def _remember_spec(self, spec: RequestSpec) -> received_requests.RequestSpecEntry:
        return self._specs.remember(spec, received_requests.RequestSpecEntry(spec_json(spec)))

    def _on_controls(self, message: BatchMessage) -> None:
        if message.exported_slots:
            raise ProtocolError("states are asked for of a model without any")
        for batch, model_index, kind in self._open.controlled_requests(message.controls):
            batch.execution.on_control(model_index, kind)

    def _poll_controls(self) -> None:
        """Read controls that have arrived. Any thread of the model may call this."""
        # If another thread holds the lock, that thread reads the controls.
        if self._stream is None or is_forked() or not self._queue.try_lock_stream():
            return
        try:
            for frame in self._stream.read_from_any_thread():
                message = read_batch(frame)
                self._on_controls(message)
                if message.requests:
                    # A second batch while one is executing breaks the protocol: this call raises
                    # ProtocolError.
                    self._received.read(message.id)
        except (ProtocolError, DecodeError) as error:
            # The model must not get this error, so the serving thread raises it.
            self._broken = error
        finally:
            self._queue.unlock_stream()

    def caller_context(self, batch: int | None) -> dict[str, Any]:
        """Describe the requests on whose behalf a thread makes a call.

        batch: the thread's batch; 0 if not known, None for the main thread. If not known, so is the
        caller: after a wrong guess, deadlock detection would refuse calls that cause no deadlock.
        """
        opened = self._received.begun()
        executing = next((begun for begun in opened if begun.state is EXECUTING), None)
        known = batch is None or all(begun is executing for begun in opened)
        if executing is not None:
            known = known or batch == executing.number
            if known:
                opened = [executing]
        deadlines = [begun.execution.deadline_ns for begun in opened]
        deadline_ns = max(deadlines) if deadlines and all(deadlines) else 0
        return {"deadline_ns": deadline_ns, "caller_known": known}

    def send_replies(
        self,
        batch: int,
        replies: list[wire.Reply],
        inputs: shared_tensors.MappedInputs | None = None,
        *,
        executed: bool = False,  # noqa: ARG002 - only replies of senders come here
    ) -> None:
        """Convert a response sender's replies to responses, in its thread, and send them."""
        # A forked process sends nothing, because the stream belongs to its parent process.
        if is_forked():
            return
        opened = self._received.find(batch)
        written: MemberResponses = []
        if opened is not None:
            # The replies are copied: before they are sent, the model may change its arrays, and the
            # owner of the inputs may reuse their memory.
            written = [
                (member, (b"".join(pieces),))
                for member, pieces in self._write_replies(opened, replies)
            ]
        replies.clear()
        if inputs is not None:
            inputs.copy_held()
        if written:
            self._queue.submit_responses(batch, written)

    def send_from_finalizer(self, batch: int, reply: wire.Reply) -> None:
        """Send a reply without waiting for any lock that this thread may hold."""
        self.send_replies(batch, [reply])

    def _deliver_responses(self, number: int, responses: MemberResponses) -> None:
        batch, stream = self._received.find(number), self._stream
        if batch is None or stream is None:
            return
        batch.add_final_responses(
            [response for response in responses if batch.is_open(response[0])]
        )
        if batch.state is EXECUTING:
            return
        frame = batch.next_frame(self._received)
        if frame is not None:
            # The serving thread finds a broken stream at its next read.
            with contextlib.suppress(RpcError):
                stream.send(frame)
        if batch.state is COMPLETE:
            self._received.end(batch)

    def _write_replies(
        self, batch: OpenBatch, replies: Sequence[wire.Reply]
    ) -> list[tuple[int, Sequence[Piece]]]:
        try:
            return self._write_all(batch, replies)
        except wire.WireError as error:
            failures = [self._runner.failure(reply.member, str(error)) for reply in replies]
            return self._write_all(batch, failures)

    def _write_all(
        self, batch: OpenBatch, replies: Sequence[wire.Reply]
    ) -> list[tuple[int, Sequence[Piece]]]:
        """Convert replies to responses; raise WireError if the inline outputs are too large."""
        classes, written = batch.classes, []
        total_bytes = 0
        for member, flags, meta, raws in replies:
            buffer = None
            tensors: Sequence[Any] = [raw if type(raw) is bytes else _flat(raw) for raw in raws]
            size_bytes = sum(map(len, tensors))
            if size_bytes >= SHM_THRESHOLD_BYTES and self._has_segments and member not in classes:
                buffer, tensors = self._segments.write(tensors)
            if buffer is None:
                total_bytes += size_bytes
                if total_bytes > MAX_EXECUTED_BYTES:
                    raise wire.WireError("the tensors are too large to be sent")
            response = self._heads.response_of(member, flags, meta, tensors, buffer)
            if member in classes:
                response = self._open.classify(batch, response)
            written.append((member, self._open.write_response(response, buffer)))
        return written


def _flat(raw: Any) -> bytes | memoryview:
    if type(raw) is bytearray:
        return bytes(raw)
    return raw.tobytes() if raw.nbytes < SHM_THRESHOLD_BYTES else wire.as_bytes(raw)
