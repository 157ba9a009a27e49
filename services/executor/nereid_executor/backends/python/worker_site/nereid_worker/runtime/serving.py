"""Executes batches in a worker with an initialised model, until the executor finalises it."""

from __future__ import annotations

import contextlib
import gc
import json
import queue
import threading
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any, Protocol

from ..pb_utils.logger import Logger
from ..protocol import wire
from ..values.errors import TritonModelException
from .error_text import error_text
from .execution import BatchExecution, SocketReplies
from .received_requests import RequestSpecEntry

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..connection.executor_connection import ExecutorConnection
    from .executions import Executions
    from .frame_reader import FrameReader
    from .model_runner import ModelRunner

_CONTROL = Struct("<QII")
_SPEC_NUMBER = Struct("<Q")
# Interval of the garbage collections that find lost response senders while requests are open.
FIRST_COLLECT_S = 1.0
MAX_COLLECT_S = 60.0


class StreamServer(Protocol):
    """Serves one stream of the instance in this process."""

    def __init__(self, serving: Serving, message: dict[str, Any], stopped: threading.Event) -> None:
        """Prepare to serve. stopped is set before stop() is called."""

    def serve(self) -> list[Any] | None:
        """Serve until the stream ends or stop() is called.

        Returns None, or a status (None: the scheduler broke the protocol) and a message.
        """

    def stop(self, *, cut: bool) -> None:
        """Have serve() return once all batches have their responses.

        The reading thread calls this. cut: the scheduler is lost, and with it the stream.
        """

    def on_output_buffer(self, number: int, buffer: list[Any] | None) -> None:
        """Handle a response to REQUEST_OUTPUT_BUFFER in the reading thread, or raise WireError."""

    def on_link(self, message: dict[str, Any] | None) -> None:
        """Handle the executor's response to REQUEST_LINK. The reading thread calls this."""

    def caller_context(self, batch: int | None) -> dict[str, Any]:
        """Describe the requests on whose behalf this thread makes a call."""


class Serving:
    """Handles the executor's frames for one initialised model."""

    def __init__(
        self,
        connection: ExecutorConnection,
        reader: FrameReader,
        executions: Executions,
        runner: ModelRunner,
        stream_server: type[StreamServer] | None = None,
    ) -> None:
        self.connection = connection
        self.reader = reader
        self.executions = executions
        self.runner = runner
        self._sink = SocketReplies(connection.channel)
        self._specs: dict[int, RequestSpecEntry] = {}
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._ending = False
        self._make_stream_server = stream_server
        self._stream_server: StreamServer | None = None
        self._stopped = threading.Event()
        reader.add_handlers(
            {
                wire.BATCH: self._on_batch,
                wire.SPEC: self._on_spec,
                wire.CONTROL: self._on_control,
                wire.READINESS_QUERY: self._on_readiness_query,
                wire.SERVE: self._on_serve,
                wire.STOP: self._on_stop,
                wire.OUTPUT_BUFFER: self._on_output_buffer,
                wire.LINK: self._on_link,
                wire.FINALIZE: lambda _body: self._work.put(self._finalize),
            }
        )

    def run(self) -> None:
        """Execute batches until the model is finalised; wire.LostError if the socket closes."""
        gc.collect()
        gc.freeze()
        # Decoupled models, and models with is_ready(), need frames that arrive while they execute.
        if self.runner.decoupled or self.runner.has_is_ready:
            self.reader.start_thread()
        while not self._ending:
            if not self.reader.has_thread and self._work.empty() and not self.executions:
                self.reader.read_frame()
            else:
                if self.executions:
                    self.reader.start_thread()
                self._next_work()()

    def _next_work(self) -> Callable[[], None]:
        pause_s = FIRST_COLLECT_S
        while True:
            try:
                return self._work.get(timeout=pause_s if self.executions else None)
            except queue.Empty:
                # A lost response sender responds with an error when it is collected. In a waiting
                # process, only this call collects senders in reference cycles.
                gc.collect()
                pause_s = min(2 * pause_s, MAX_COLLECT_S)

    def _on_batch(self, body: bytearray) -> None:
        self._work.put(partial(self._execute_batch, self._read_batch(body)))

    def _read_batch(self, body: bytearray) -> BatchExecution:
        number, members = wire.read_batch(body)
        runner = self.runner
        execution = BatchExecution(
            number,
            self._sink,
            self.reader.read_arrived,
            decoupled=runner.decoupled,
            iterative=runner.iterative,
        )
        self.executions.add(execution)
        for place, (spec_number, _, meta, tensors) in enumerate(members):
            runner.add_request(execution, place, self._specs[spec_number], tensors, meta)
        return execution

    def _execute_batch(self, execution: BatchExecution) -> None:
        self.executions.note_begun(execution.number)
        replies = self.runner.execute(execution)
        try:
            execution.finish(replies)
        except wire.WireError as error:
            execution.finish(self.runner.failures(execution, str(error), again=True))

    def _on_spec(self, body: bytearray) -> None:
        (number,) = _SPEC_NUMBER.unpack_from(body)
        if not number:
            self._specs.clear()
        else:
            self._specs[number] = RequestSpecEntry(bytes(body[_SPEC_NUMBER.size :]))

    def _on_control(self, body: bytearray) -> None:
        batch, member, control = _CONTROL.unpack_from(body)
        known = self.executions.find(batch)
        if known is not None:
            known.on_control(member, control)

    def _on_readiness_query(self, body: bytearray) -> None:
        number = json.loads(bytes(body))
        # This first response shows that the process is not hung.
        self.connection.notify(wire.READY, [number, None])
        # is_ready() may take long, and batches must not wait for it.
        report = partial(self._report_ready, number)
        threading.Thread(target=report, name="is_ready", daemon=True).start()

    def _report_ready(self, number: int) -> None:
        ready = False
        try:
            ready = self.runner.is_ready()
        except BaseException as error:
            with contextlib.suppress(wire.LostError):
                Logger.log_error(f"is_ready failed: {error_text(error)}")
        with contextlib.suppress(wire.LostError):
            self.connection.notify(wire.READY, [number, ready])

    def _finalize(self) -> None:
        self._ending = True
        self.runner.finalize()

    def _on_serve(self, body: bytearray) -> None:
        self._stopped.clear()
        self._work.put(partial(self._serve_stream, json.loads(bytes(body))))

    def _on_stop(self, body: bytearray) -> None:
        self._stopped.set()
        if self._stream_server is not None:
            self._stream_server.stop(cut=json.loads(bytes(body)))

    def _on_output_buffer(self, body: bytearray) -> None:
        if self._stream_server is None:
            raise wire.WireError("a buffer for the outputs of no stream")
        self._stream_server.on_output_buffer(*json.loads(bytes(body)))

    def _on_link(self, body: bytearray) -> None:
        # The response may arrive after the stream has ended.
        if self._stream_server is not None:
            self._stream_server.on_link(json.loads(bytes(body)))

    def _serve_stream(self, message: dict[str, Any]) -> None:
        # Another thread must read the executor's frames while the model executes.
        self.reader.start_thread()
        try:
            if self._make_stream_server is None:
                raise TritonModelException("this worker cannot serve a stream")
            server = self._make_stream_server(self, message, self._stopped)
        except Exception as error:
            self.connection.notify(wire.SERVED, error_text(error))
            return
        self._stream_server = server
        self.executions.stream_context = server.caller_context
        gc.collect()
        gc.freeze()
        # The executor has numbered the warm-up's batches; the scheduler counts from the start.
        self.executions.note_begun(0)
        self.connection.notify(wire.SERVED, server.serve())
        self._stream_server = self.executions.stream_context = None
