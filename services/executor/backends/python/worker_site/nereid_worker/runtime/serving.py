"""A worker with an initialised model: it executes batches until the executor finalises it.

The main thread runs the model. It also reads the socket, unless requests may stay open after
execute() has returned, or the model has is_ready(): then a thread does that, since the main one may
be busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import inspect
import json
import os
import queue
import threading
import weakref
from functools import partial
from struct import Struct, pack_into
from typing import TYPE_CHECKING, Any, Protocol

from ..pb_utils.errors import TritonError, TritonModelException
from ..pb_utils.logger import Logger
from ..pb_utils.responses import FINAL, InferenceResponse
from ..protocol import wire
from .error_text import ModelMisuse, error_text, traceback_text
from .execution import BatchExecution, SocketReplies, check_response, failure, reply_of
from .iterations import Iterations
from .received_requests import Form, apply_metadata, make_request

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..connection.executor_connection import ExecutorConnection
    from ..pb_utils.requests import InferenceRequest

_CONTROL = Struct("<QII")
_FORM = Struct("<Q")
_LAST_BATCH = Struct("<Q")
# The batch that a coroutine executes, inherited by the tasks that it starts.
_batch: contextvars.ContextVar[int] = contextvars.ContextVar("batch", default=0)
# How often lost response senders are garbage collected while their requests are open.
FIRST_COLLECT_S = 1.0
LONGEST_COLLECT_S = 60.0


class StreamServer(Protocol):
    """Serves the instance's stream in this process; made anew for each stream."""

    def __init__(self, serving: Serving, about: dict[str, Any], stopped: threading.Event) -> None:
        """about: the SERVE frame. stopped: set before stop() is called."""

    def serve(self) -> list[Any] | None:
        """Until the stream ends or stop(). None: in good order; else a status and a message, the
        status None if the scheduler broke the protocol.
        """

    def stop(self, *, cut: bool) -> None:
        """Have serve() return once all batches have their responses. From the reading thread.

        cut: the scheduler is lost, and the stream of no use.
        """

    def on_output_buffer(self, buffer: list[Any] | None) -> None:
        """The executor's response to REQUEST_OUTPUT_BUFFER. From the reading thread."""

    def caller_context(self, batch: int | None) -> dict[str, Any]:
        """As Serving._caller_context."""


class Serving:
    """One initialised model, and what the executor asks of it."""

    def __init__(
        self,
        connection: ExecutorConnection,
        last_batch: Any,
        name: str,
        stream_server: type[StreamServer] | None = None,
        *,
        decoupled: bool,
        iterative: bool = False,
    ) -> None:
        """last_batch: shared memory for the number of the batch that was begun last.
        iterative: the model may have requests scheduled again.
        """
        self._connection = connection
        self._channel = connection.channel
        self._model: Any = None
        self._name = name
        self._last_batch = last_batch
        self._decoupled = decoupled
        self._iterations = Iterations() if iterative else None
        self._sink = SocketReplies(connection.channel)
        self._forms: dict[int, Form] = {}
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        # Batches that the executor may send controls for.
        self._open: weakref.WeakValueDictionary[int, BatchExecution] = weakref.WeakValueDictionary()
        self._reader: threading.Thread | None = None
        self._read_lock = threading.Lock()
        self._ending = False
        self._has_is_ready = False
        self._make_stream_server = stream_server
        # Of the current stream, if it is served here; and whether it shall end.
        self._stream_server: StreamServer | None = None
        self._stopped = threading.Event()
        self._execute: Callable[[Any], Any] = list
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handlers: dict[int, Callable[[bytearray], None]] = {
            wire.BATCH: self._on_batch,
            wire.FORM: self._on_form,
            wire.CONTROL: self._on_control,
            wire.CALL_RESPONSE: connection.on_call_response,
            wire.READINESS_QUERY: self._on_readiness_query,
            wire.SERVE: self._on_serve,
            wire.STOP: self._on_stop,
            wire.OUTPUT_BUFFER: self._on_output_buffer,
            wire.FINALIZE: lambda _body: self._work.put(self._finalize),
        }
        # From now on the model can make calls.
        connection.start_reader = self.start_reader
        connection.caller_context = self._current_caller_context

    def set_model(self, model: Any) -> bool:
        """Serve this model from now on; whether it has is_ready()."""
        self._model = model
        self._execute = model.execute
        self._has_is_ready = callable(getattr(model, "is_ready", None))
        return self._has_is_ready

    def run(self) -> None:
        """Until FINALIZE is done; raises wire.LostError when the executor closes the socket."""
        gc.collect()
        gc.freeze()
        # Frames for such models must be read while they execute.
        if self._decoupled or self._has_is_ready:
            self.start_reader()
        while not self._ending:
            if self._reader is None and self._work.empty() and not self._open:
                with self._read_lock:
                    self._handle(*self._channel.receive())
            else:
                if self._open:
                    self.start_reader()
                self._next_work()()

    def _next_work(self) -> Callable[[], None]:
        pause_s = FIRST_COLLECT_S
        while True:
            try:
                return self._work.get(timeout=pause_s if self._open else None)
            except queue.Empty:
                # A lost sender responds when it is collected; in a reference cycle that takes the
                # garbage collector, which does not run by itself in a process that waits.
                gc.collect()
                pause_s = min(2 * pause_s, LONGEST_COLLECT_S)

    def start_reader(self) -> None:
        """Have a thread of its own read the socket from now on."""
        if self._reader is None:
            self._reader = threading.Thread(target=self._read, name="nereid", daemon=True)
            self._reader.start()

    def in_reader_thread(self) -> bool:
        """Whether this is the thread that reads the socket, and so must not wait for a frame."""
        return threading.current_thread() is self._reader

    def _handle_arrived(self) -> None:
        """Handle the frames that have arrived, when a model asks during execute()."""
        if self._reader is None and self._read_lock.acquire(blocking=False):
            try:
                while (frame := self._channel.receive_nowait()) is not None:
                    self._handle(*frame)
            finally:
                self._read_lock.release()

    def _read(self) -> None:
        try:
            with self._read_lock:
                while True:
                    self._handle(*self._channel.receive())
        except wire.LostError:
            os._exit(1)

    # ---- frames from the executor

    def _handle(self, kind: int, body: bytearray) -> None:
        handler = self._handlers.get(kind)
        if handler is None:
            raise wire.WireError(f"the executor sent a frame of kind {kind}")
        handler(body)

    def _on_batch(self, body: bytearray) -> None:
        self._work.put(partial(self._execute_batch, self._read_batch(body)))

    def _on_form(self, body: bytearray) -> None:
        (number,) = _FORM.unpack_from(body)
        if not number:
            self._forms.clear()
        else:
            self._forms[number] = Form(bytes(body[_FORM.size :]))

    def _on_control(self, body: bytearray) -> None:
        batch, member, control = _CONTROL.unpack_from(body)
        known = self._open.get(batch)
        if known is not None:
            known.on_control(member, control)

    def _on_readiness_query(self, body: bytearray) -> None:
        number = json.loads(bytes(body))
        # Before the model is asked: this process is not the one that hangs.
        self._connection.notify(wire.READY, [number, None])
        # In a thread of its own: is_ready() may take long, and batches must not wait for it.
        report = partial(self._report_ready, number)
        threading.Thread(target=report, name="is_ready", daemon=True).start()

    def _on_serve(self, body: bytearray) -> None:
        self._stopped.clear()
        self._work.put(partial(self._serve_stream, json.loads(bytes(body))))

    def _on_stop(self, body: bytearray) -> None:
        self._stopped.set()
        if self._stream_server is not None:
            self._stream_server.stop(cut=json.loads(bytes(body)))

    def _on_output_buffer(self, body: bytearray) -> None:
        if self._stream_server is not None:
            self._stream_server.on_output_buffer(json.loads(bytes(body)))

    def _report_ready(self, number: int) -> None:
        ready = False
        try:
            returned = self._model.is_ready()
            if inspect.isawaitable(returned):
                returned = self._await_result(returned)
            if not isinstance(returned, bool):
                raise TypeError(f"is_ready returned {type(returned)} instead of a bool")
            ready = returned
        except BaseException as error:
            with contextlib.suppress(wire.LostError):
                Logger.log_error(f"is_ready failed: {error_text(error)}")
        with contextlib.suppress(wire.LostError):
            self._connection.notify(wire.READY, [number, ready])

    def _await_result(self, awaitable: Any) -> Any:
        """The result, awaited in the event loop that execute() runs in, if it has one."""
        if self._loop is None:
            return asyncio.run(_awaiting(awaitable))
        return asyncio.run_coroutine_threadsafe(_awaiting(awaitable), self._loop).result()

    def _finalize(self) -> None:
        self._ending = True
        if hasattr(self._model, "finalize"):
            self._model.finalize()

    # ---- the instance's stream, served in this process

    def _serve_stream(self, about: dict[str, Any]) -> None:
        """Serve it until it ends or STOP comes, and report how it ended."""
        # Calls to the mesh still go through the executor.
        self.start_reader()
        try:
            if self._make_stream_server is None:
                raise TritonModelException("this worker cannot serve a stream")
            server = self._make_stream_server(self, about, self._stopped)
        except Exception as error:
            self._connection.notify(wire.SERVED, error_text(error))
            return
        self._stream_server = server
        gc.collect()
        gc.freeze()
        # The batches of the warm-up were numbered by the executor, those to come by the scheduler.
        self.note_begun(0)
        self._connection.notify(wire.SERVED, server.serve())
        self._stream_server = None

    def _current_caller_context(self) -> dict[str, Any]:
        """On behalf of which requests this thread makes a call, where the executor cannot know."""
        # execute() itself runs in the main thread alone.
        is_main = threading.current_thread() is threading.main_thread()
        batch = None if is_main else _batch.get()
        if self._stream_server is not None:
            return self._stream_server.caller_context(batch)
        executing = _LAST_BATCH.unpack_from(self._last_batch)[0]
        if self._decoupled or batch in (None, executing):
            return {}
        # References, since other threads may add to them meanwhile.
        known = [each() for each in self._open.valuerefs()]
        if any(each and each.number != executing and each.has_open_requests for each in known):
            return {"deadline_ns": 0, "caller_known": False}
        return {}

    def note_begun(self, number: int) -> None:
        """Leave the batch's number where the executor finds it, also after this process died."""
        _LAST_BATCH.pack_into(self._last_batch, 0, number)

    def note_running(self, ids: Sequence[int]) -> None:
        """Likewise the ids of the requests that are executing, as many as there is room for."""
        ids = ids[: (len(self._last_batch) - 2 * _LAST_BATCH.size) // _LAST_BATCH.size]
        pack_into(f"<{len(ids) + 1}Q", self._last_batch, _LAST_BATCH.size, len(ids), *ids)

    def send(self, kind: int, parts: Sequence[Any]) -> None:
        self._channel.send(kind, parts)

    def notify(self, kind: int, message: Any) -> None:
        self._connection.notify(kind, message)

    # ---- batches

    def _read_batch(self, body: bytearray) -> BatchExecution:
        number, members = wire.read_batch(body)
        execution = BatchExecution(
            number,
            self._sink,
            self._handle_arrived,
            decoupled=self._decoupled,
            iterative=self._iterations is not None,
        )
        self._open[number] = execution
        for place, (form_number, meta, _, tensors) in enumerate(members):
            self.add_request(execution, place, self._forms[form_number], tensors, meta)
        return execution

    def add_request(
        self,
        execution: BatchExecution,
        member: int,
        form: Form,
        tensors: Sequence[Any],
        meta: bytes,
    ) -> None:
        """Make the next member of a batch a request for the model."""
        execution.requested_outputs.append(form.requested_outputs)
        try:
            request = make_request(form, tensors, execution, member)
        except TritonModelException as error:
            unavailable = TritonError(str(error), TritonError.UNAVAILABLE)
            execution.rejected.append(failure(member, unavailable))
            return
        iteration = apply_metadata(request, meta) if meta else ""
        if iteration and self._iterations is not None:
            self._iterations.begin_request(execution, request, iteration)
        if self._decoupled:
            # A request is complete when the model holds it no longer.
            execution.state_of(request)
        execution.requests.append(request)

    def _execute_batch(self, execution: BatchExecution) -> None:
        self.note_begun(execution.number)
        replies = self.execute(execution)
        try:
            execution.finish(replies)
        except wire.WireError as error:
            execution.finish(self.failures(execution, str(error), again=True))

    def execute(self, execution: BatchExecution) -> list[wire.Reply]:
        """Run the model; its replies. Members without one respond by their senders."""
        # Taken out of the execution, so that once they are executed only the model holds them.
        requests, execution.requests = execution.requests, []
        execution.members = [request._member for request in requests]
        if not requests:
            return execution.rejected
        try:
            returned = self._execute(requests)
            if type(returned) is not list and inspect.iscoroutine(returned):
                returned = self._run_coroutine(returned, requests)
            replies = self._replies(execution, returned)
            if self._iterations is not None:
                replies += self._iterations.end_iteration(requests)
        except BaseException as error:
            text = error_text(error)
            Logger.log_error(self._error(text).message())
            replies = self.failures(execution, text)
        return execution.rejected + replies if execution.rejected else replies

    def _run_coroutine(self, coroutine: Any, requests: list[InferenceRequest]) -> Any:
        """The result of an async execute(), which a decorator may hide."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="asyncio", daemon=True).start()
        if self._decoupled:
            # Not waited for: the next batch may come while this one still runs.
            coroutine = self._watch_decoupled(coroutine, requests)
        elif requests[0]._execution is not None:
            _batch.set(requests[0]._execution.number)
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return None if self._decoupled else future.result()

    async def _watch_decoupled(self, coroutine: Any, requests: list[InferenceRequest]) -> None:
        """Run an async decoupled execute() and send its error, if it fails."""
        try:
            self._check_none(await coroutine)
            self._send_rescheduled(requests)
        except BaseException as error:
            Logger.log_error(traceback_text(error))
            failed = InferenceResponse(error=self._error(error_text(error)))
            for request in requests:
                with contextlib.suppress(TritonModelException):
                    request.get_response_sender().send(failed, FINAL)

    def _send_rescheduled(self, requests: list[InferenceRequest]) -> None:
        """Send back what an async execute() wants again."""
        execution = requests[0]._execution
        if self._iterations is not None and isinstance(execution, BatchExecution):
            replies = self._iterations.end_iteration(requests)
            if replies:
                execution.send_replies(replies)

    def _replies(self, execution: BatchExecution, returned: Any) -> list[wire.Reply]:
        """Replies made of what execute() returned; raises ModelMisuse."""
        if self._decoupled:
            self._check_none(returned)
            return []
        members, held = execution.members, execution.held
        requested = execution.requested_outputs
        if returned is None and any(state.has_sender for state in held.values()):
            returned = [None] * len(members)
        if not isinstance(returned, list):
            raise ModelMisuse(
                f"Expected a list in the execute return, found type '{type(returned)}'."
            )
        if len(returned) != len(members):
            raise ModelMisuse(
                "Number of InferenceResponse objects do not match the number of InferenceRequest "
                f"objects. InferenceRequest(s) size is:{len(members)}, and InferenceResponse(s) "
                f"size is:{len(returned)}\n"
            )
        replies = []
        for member, response in zip(members, returned):  # noqa: B905 - Python 3.9
            if type(response) is not InferenceResponse or held:
                check_response(response, held.get(member))
                if response is None:
                    continue
            buffer = execution.output_buffers.get(member) if execution.output_buffers else None
            replies.append(reply_of(member, requested[member], response, buffer))
        return replies

    def _check_none(self, returned: Any) -> None:
        if returned is not None:
            raise ModelMisuse(
                f"Python model '{self._name}' is using the decoupled mode and the execute function "
                "must return None."
            )

    def _error(self, text: str) -> TritonError:
        message = f"Failed to process the request(s) for model '{self._name}', message: {text}"
        return TritonError(message)

    def failure(self, member: int, text: str) -> wire.Reply:
        """The reply to a member whose execution failed."""
        return failure(member, self._error(text))

    def failures(
        self, execution: BatchExecution, text: str, *, again: bool = False
    ) -> list[wire.Reply]:
        """Replies to all members of a failed batch, or (not again) to those without a response."""
        responded = {member for member, state in execution.held.items() if state.responded}
        return [
            self.failure(member, text)
            for member in execution.members
            if again or member not in responded
        ]


async def _awaiting(awaitable: Any) -> Any:
    return await awaitable
