"""The worker's life once its model is initialised: batch after batch, until it is told to end.

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
from struct import Struct
from typing import TYPE_CHECKING, Any

from . import nereid_modules, wire
from .errors import TritonError, TritonModelException
from .logger import Logger
from .requests import Form, received, tell
from .responses import FINAL, InferenceResponse
from .tasks import Execution, check_response, failure, reply_of
from .texts import Refusal, error_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .link import Link
    from .requests import InferenceRequest

_CONTROL = Struct("<QII")
_FORM = Struct("<Q")
_NOTE = Struct("<Q")
# The batch that a coroutine executes, and those that it starts.
_batch: contextvars.ContextVar[int] = contextvars.ContextVar("batch", default=0)
# How often the collector looks for senders that a model has lost, while their requests wait.
FIRST_SWEEP_S = 1.0
LONGEST_SWEEP_S = 60.0
# What serves the instance's stream.
_DIRECT = "nereid.services.executor.backends.python.supervisor.direct_server"


class Serving:
    """One initialised model and what has to be done with it."""

    def __init__(self, link: Link, name: str, began: Any, *, decoupled: bool) -> None:
        """began: memory that tells the executor which batch was begun last."""
        self._link = link
        self._channel = link.channel
        self._model: Any = None
        self._name = name
        self._began = began
        self._decoupled = decoupled
        self._forms: dict[int, Form] = {}
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        # Batches that the executor can have news of.
        self._open: weakref.WeakValueDictionary[int, Execution] = weakref.WeakValueDictionary()
        self._reader: threading.Thread | None = None
        self._reading = threading.Lock()
        self._ending = False
        self._tells_ready = False
        # What serves the instance's stream, and whether it shall do so no longer.
        self._direct: Any = None
        self._stopped = threading.Event()
        self._execute: Callable[[Any], Any] = list
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handlers: dict[int, Callable[[bytearray], None]] = {
            wire.BATCH: self._on_batch,
            wire.FORM: self._on_form,
            wire.CONTROL: self._on_control,
            wire.CALL_RESPONSE: link.responded,
            wire.READINESS_QUERY: self._on_readiness_query,
            wire.SERVE: self._on_serve,
            wire.STOP: self._on_stop,
            wire.ROOM: self._on_room,
            wire.FINALIZE: lambda _body: self._work.put(self._finalize),
        }
        # From now on the model can ask for things.
        link.attend = self.start_reader
        link.asker = self._asker

    def take(self, model: Any) -> bool:
        """From now on this is the model; whether it can be asked if it is ready."""
        self._model = model
        self._execute = model.execute
        self._tells_ready = callable(getattr(model, "is_ready", None))
        return self._tells_ready

    def run(self) -> None:
        """Until FINALIZE came and is done; raises wire.LostError when the executor is gone."""
        gc.collect()
        gc.freeze()
        # It can be asked while it executes.
        if self._decoupled or self._tells_ready:
            self.start_reader()
        while not self._ending:
            if self._reader is None and self._work.empty() and not self._open:
                with self._reading:
                    self._handle(*self._channel.receive())
            else:
                if self._open:
                    self.start_reader()
                self._next_work()()

    def _next_work(self) -> Callable[[], None]:
        pause_s = FIRST_SWEEP_S
        while True:
            try:
                return self._work.get(timeout=pause_s if self._open else None)
            except queue.Empty:
                # A sender that the model has lost in a ring of garbage is answered by its end, and
                # nobody looks for such rings in a process that waits.
                gc.collect()
                pause_s = min(2 * pause_s, LONGEST_SWEEP_S)

    def start_reader(self) -> None:
        """From now on a thread of its own reads the socket."""
        if self._reader is None:
            self._reader = threading.Thread(target=self._read, name="nereid", daemon=True)
            self._reader.start()

    def is_reading(self) -> bool:
        """Whether this is the thread that reads the socket, which then cannot wait for it."""
        return threading.current_thread() is self._reader

    def look(self) -> None:
        """See what is there, for a model that asks in the midst of execute()."""
        if self._reader is None and self._reading.acquire(blocking=False):
            try:
                while (frame := self._channel.take()) is not None:
                    self._handle(*frame)
            finally:
                self._reading.release()

    def _read(self) -> None:
        try:
            with self._reading:
                while True:
                    self._handle(*self._channel.receive())
        except wire.LostError:
            os._exit(1)

    # ---- what comes

    def _handle(self, kind: int, body: bytearray) -> None:
        handler = self._handlers.get(kind)
        if handler is None:
            raise wire.WireError(f"the executor sent a frame of kind {kind}")
        handler(body)

    def _on_batch(self, body: bytearray) -> None:
        self._work.put(partial(self._run, self._received(body)))

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
            known.control(member, control)

    def _on_readiness_query(self, body: bytearray) -> None:
        # A thread of its own: it may take long, or for ever, and batches shall not wait for it.
        asking = partial(self._tell_ready, json.loads(bytes(body)))
        threading.Thread(target=asking, name="is_ready", daemon=True).start()

    def _on_serve(self, body: bytearray) -> None:
        self._stopped.clear()
        self._work.put(partial(self._serve_directly, json.loads(bytes(body))))

    def _on_stop(self, _body: bytearray) -> None:
        self._stopped.set()
        if self._direct is not None:
            self._direct.wake()

    def _on_room(self, body: bytearray) -> None:
        if self._direct is not None:
            self._direct.rooms.put(json.loads(bytes(body)))

    def _tell_ready(self, number: int) -> None:
        ready = False
        try:
            told = self._model.is_ready()
            if inspect.isawaitable(told):
                told = self._awaited(told)
            if not isinstance(told, bool):
                raise TypeError(f"is_ready returned {type(told)} instead of a bool")
            ready = told
        except BaseException as error:
            with contextlib.suppress(wire.LostError):
                Logger.log_error(f"is_ready failed: {error_text(error)}")
        with contextlib.suppress(wire.LostError):
            self._link.tell(wire.READY, [number, ready])

    def _awaited(self, told: Any) -> Any:
        """The result, got in the loop that execute() runs in, if it is a coroutine, too."""
        if self._loop is None:
            return asyncio.run(_awaiting(told))
        return asyncio.run_coroutine_threadsafe(_awaiting(told), self._loop).result()

    def _finalize(self) -> None:
        self._ending = True
        if hasattr(self._model, "finalize"):
            self._model.finalize()

    # ---- the instance's own stream

    def _serve_directly(self, about: dict[str, Any]) -> None:
        """Serve it until it ends or STOP comes, and tell how it ended."""
        # Calls and their answers go on by way of the executor.
        self.start_reader()
        try:
            module = nereid_modules.load(about["roots"], _DIRECT)
            self._direct = module.DirectServer(self, about, self._stopped)
        except Exception as error:
            self._link.tell(wire.SERVED, error_text(error))
            return
        gc.collect()
        gc.freeze()
        # What it was given to warm up had numbers of another kind.
        self.note(0)
        self._link.tell(wire.SERVED, self._direct.serve())
        self._direct = None

    def _asker(self) -> dict[str, Any]:
        """For whose sake this thread asks other models, where the executor cannot know."""
        # Only the main thread runs execute() itself.
        is_main = threading.current_thread() is threading.main_thread()
        batch = None if is_main else _batch.get()
        if self._direct is not None:
            asker: dict[str, Any] = self._direct.asker(batch)
            return asker
        executed = _NOTE.unpack_from(self._began)[0]
        if self._decoupled or batch in (None, executed):
            return {}
        # Others may add to them meanwhile.
        known = [each() for each in self._open.valuerefs()]
        if any(each and each.number != executed and each.left_open for each in known):
            return {"until_ns": 0, "sure": False}
        return {}

    def note(self, number: int) -> None:
        """Tell the executor, should it ever ask, which batch begins."""
        _NOTE.pack_into(self._began, 0, number)

    def form(self, text: bytes) -> Form:
        return Form(text)

    def execution(self, number: int, sink: Any, look: Callable[[], None]) -> Execution:
        """A batch; sink: takes what responses' senders send, as a channel does."""
        return Execution(number, sink, look, decoupled=False)

    def tell(self, kind: int, message: Any) -> None:
        self._link.tell(kind, message)

    # ---- batches

    def _received(self, body: bytearray) -> Execution:
        number, members = wire.read_batch(body)
        execution = Execution(number, self._channel, self.look, decoupled=self._decoupled)
        self._open[number] = execution
        for place, (form_number, meta, _, tensors) in enumerate(members):
            self.admit(execution, place, self._forms[form_number], tensors, meta)
        return execution

    def admit(
        self, execution: Execution, place: int, form: Form, tensors: Sequence[Any], meta: bytes
    ) -> None:
        """Make the next member of a batch a request for the model."""
        execution.wanted.append(form.wanted)
        try:
            request = received(form, tensors, execution, place)
        except TritonModelException as error:
            refusal = TritonError(str(error), TritonError.UNAVAILABLE)
            execution.refusals.append(failure(place, refusal))
            return
        if meta:
            tell(request, meta)
        if self._decoupled:
            # Whether it is answered is known by whether the model still has it.
            execution.task(request)
        execution.requests.append(request)

    def _run(self, execution: Execution) -> None:
        self.note(execution.number)
        replies = self.executed(execution)
        try:
            execution.finish(replies)
        except wire.WireError as error:
            execution.finish(self.failures(execution, str(error), again=True))

    def executed(self, execution: Execution) -> list[wire.Reply]:
        """The replies to all of its members; whoever waits longer, has a sender."""
        # What a model still holds of its inputs after this, it goes on holding.
        requests, execution.requests = execution.requests, []
        execution.members = [request._member for request in requests]
        if not requests:
            return execution.refusals
        try:
            returned = self._execute(requests)
            if type(returned) is not list and inspect.iscoroutine(returned):
                returned = self._executed_in_loop(returned, requests)
            replies = self._replies(execution, returned)
        except BaseException as error:
            replies = self.failures(execution, error_text(error))
        return execution.refusals + replies if execution.refusals else replies

    def _executed_in_loop(self, coroutine: Any, requests: list[InferenceRequest]) -> Any:
        """What a coroutine of execute() returns; decorators may hide that it is one."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="asyncio", daemon=True).start()
        if self._decoupled:
            # The next batch may come while this one is still being worked on.
            coroutine = self._watched(coroutine, requests)
        elif requests[0]._execution is not None:
            _batch.set(requests[0]._execution.number)
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return None if self._decoupled else future.result()

    async def _watched(self, coroutine: Any, requests: list[InferenceRequest]) -> None:
        """A decoupled execute() that is no longer waited for."""
        try:
            self._check_none(await coroutine)
        except BaseException as error:
            failed = InferenceResponse(error=self._error(error_text(error)))
            for request in requests:
                with contextlib.suppress(TritonModelException):
                    request.get_response_sender().send(failed, FINAL)

    def _replies(self, execution: Execution, returned: Any) -> list[wire.Reply]:
        """What execute() returned, as it travels; raises Refusal if it makes no sense."""
        if self._decoupled:
            self._check_none(returned)
            return []
        members, wanted, held = execution.members, execution.wanted, execution.held
        if returned is None and any(task.has_sender for task in held.values()):
            returned = [None] * len(members)
        if not isinstance(returned, list):
            raise Refusal(f"Expected a list in the execute return, found type '{type(returned)}'.")
        if len(returned) != len(members):
            raise Refusal(
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
            room = execution.rooms.get(member) if execution.rooms else None
            replies.append(reply_of(member, wanted[member], response, room))
        return replies

    def _check_none(self, returned: Any) -> None:
        if returned is not None:
            raise Refusal(
                f"Python model '{self._name}' is using the decoupled mode and the execute function "
                "must return None."
            )

    def _error(self, text: str) -> TritonError:
        message = f"Failed to process the request(s) for model '{self._name}', message: {text}"
        return TritonError(message)

    def failures(self, execution: Execution, text: str, *, again: bool = False) -> list[wire.Reply]:
        """The batch failed as a whole: what is not answered yet is answered so."""
        error = self._error(text)
        responded = {member for member, task in execution.held.items() if task.responded}
        return [
            failure(member, error)
            for member in execution.members
            if again or member not in responded
        ]


async def _awaiting(told: Any) -> Any:
    return await told
