"""The worker's life once its model is initialised: batch after batch, until it is told to end.

The main thread runs the model. It also reads the socket, unless requests may stay open after
execute() has returned: then a thread does that, since the main one may be busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import json
import os
import queue
import threading
import weakref
from struct import Struct
from typing import TYPE_CHECKING, Any

from . import memory, wire
from .errors import TritonError, TritonModelException
from .requests import received
from .responses import FINAL, InferenceResponse
from .tasks import Execution, Task, failure
from .tensors import Tensor
from .texts import error_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from .link import Link
    from .requests import InferenceRequest

_CONTROL = Struct("<QII")
_FORM = Struct("<Q")
_NUMBER = Struct("<Q")


class Form:
    """What requests of one form have and want."""

    def __init__(self, text: bytes) -> None:
        about = json.loads(text)
        self.inputs = [(name, datatype, tuple(shape)) for name, datatype, shape in about["inputs"]]
        self.outputs: list[str] = about["outputs"]
        self.wanted = frozenset(self.outputs)


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
        self._open: weakref.WeakValueDictionary[tuple[int, int], Task] = (
            weakref.WeakValueDictionary()
        )
        self._reader: threading.Thread | None = None
        self._reading = threading.Lock()
        self._ending = False
        self._execute: Callable[[Any], Any] = list
        self._loop: asyncio.AbstractEventLoop | None = None
        # From now on the model can ask for things.
        link.attend = self.start_reader

    def run(self, model: Any) -> None:
        """Until FINALIZE came and is done; raises wire.LostError when the executor is gone."""
        self._model = model
        self._execute = model.execute
        if inspect.iscoroutinefunction(model.execute):
            self._execute = self._execute_in_loop
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="asyncio", daemon=True).start()
        gc.collect()
        gc.freeze()
        if self._decoupled:
            self.start_reader()
        while not self._ending:
            if self._reader is None and self._work.empty():
                with self._reading:
                    self._handle(*self._channel.receive())
            else:
                self._work.get()()

    def start_reader(self) -> None:
        """From now on a thread of its own reads the socket."""
        if self._reader is None:
            self._reader = threading.Thread(target=self._read, name="nereid", daemon=True)
            self._reader.start()

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
        if kind == wire.BATCH:
            number, members = wire.read_batch(body)
            begun = [(self._forms[member.form], member) for member in members]
            self._work.put(lambda: self._run(number, begun))
        elif kind == wire.FORM:
            (number,) = _FORM.unpack_from(body)
            if not number:
                self._forms.clear()
            else:
                self._forms[number] = Form(bytes(body[_FORM.size :]))
        elif kind == wire.CONTROL:
            batch, member, control = _CONTROL.unpack_from(body)
            task = self._open.get((batch, member))
            if task is not None:
                task.control(control)
        elif kind == wire.CALL_ANSWER:
            self._link.answered(body)
        elif kind == wire.ASK_READY:
            self._work.put(self._tell_ready)
        elif kind == wire.FINALIZE:
            self._work.put(self._finalize)
        else:
            raise wire.WireError(f"the executor sent a frame of kind {kind}")

    def _tell_ready(self) -> None:
        try:
            answer = self._model.is_ready()
            if inspect.isawaitable(answer):
                answer = asyncio.run(_awaited(answer))
        except Exception:
            answer = False
        self._link.tell(wire.READY, bool(answer))

    def _finalize(self) -> None:
        self._ending = True
        if hasattr(self._model, "finalize"):
            self._model.finalize()

    # ---- batches

    def _run(self, number: int, members: list[tuple[Form, wire.Member]]) -> None:
        _NUMBER.pack_into(self._began, 0, number)
        execution = Execution(number, self._channel, self.look, decoupled=self._decoupled)
        tasks: list[Task] = []
        requests = []
        replies: list[wire.Reply] = []
        inputs = memory.Inputs()
        for place, (form, member) in enumerate(members):
            task = Task(execution, place, form.wanted)
            try:
                request = _request(form, member, task, inputs)
            except TritonModelException as error:
                replies.append(failure(place, TritonError(str(error), TritonError.UNAVAILABLE)))
                continue
            self._open[number, place] = task
            tasks.append(task)
            requests.append(request)
            del request
        replies += self._executed(tasks, requests) if tasks else ()
        for reply in replies:
            self._answered(number, reply.member)
        # What a model still holds of its inputs after this is copied.
        del requests, task
        try:
            execution.send(replies, wire.FREE, inputs if inputs.used else None)
        except wire.WireError as error:
            execution.send(self._failures(tasks, str(error), again=True), wire.FREE)
        execution.returned = True

    def _answered(self, number: int, place: int) -> None:
        task = self._open.get((number, place))
        if task is not None:
            task.answered = True

    def _executed(self, tasks: list[Task], requests: list[InferenceRequest]) -> list[wire.Reply]:
        try:
            return self._replies(tasks, self._execute(requests))
        except BaseException as error:
            return self._failures(tasks, error_text(error))

    def _execute_in_loop(self, requests: list[InferenceRequest]) -> Any:
        loop = self._loop
        assert loop is not None, "only where execute is a coroutine"  # noqa: S101
        coroutine = self._model.execute(requests)
        if self._decoupled:
            # The next batch may come while this one is still being worked on.
            coroutine = self._watched(coroutine, requests)
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
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

    def _replies(self, tasks: list[Task], returned: Any) -> list[wire.Reply]:
        """What execute() returned, as it travels; raises _Refusal if it makes no sense."""
        if self._decoupled:
            self._check_none(returned)
            return []
        if returned is None and any(task.has_sender for task in tasks):
            returned = [None] * len(tasks)
        if not isinstance(returned, list):
            raise _Refusal(f"Expected a list in the execute return, found type '{type(returned)}'.")
        if len(returned) != len(tasks):
            raise _Refusal(
                "Number of InferenceResponse objects do not match the number of InferenceRequest "
                f"objects. InferenceRequest(s) size is:{len(tasks)}, and InferenceResponse(s) "
                f"size is:{len(returned)}\n"
            )
        return [
            reply
            for task, response in zip(tasks, returned)  # noqa: B905 - Python 3.9
            for reply in _replies_of(task, response)
        ]

    def _check_none(self, returned: Any) -> None:
        if returned is not None:
            raise _Refusal(
                f"Python model '{self._name}' is using the decoupled mode and the execute function "
                "must return None."
            )

    def _error(self, text: str) -> TritonError:
        message = f"Failed to process the request(s) for model '{self._name}', message: {text}"
        return TritonError(message)

    def _failures(self, tasks: list[Task], text: str, *, again: bool = False) -> list[wire.Reply]:
        """The batch failed as a whole: what is not answered yet is answered so."""
        error = self._error(text)
        return [failure(task.member, error) for task in tasks if again or not task.answered]


class _Refusal(Exception):
    """What the model returned makes no sense."""


def _replies_of(task: Task, response: Any) -> list[wire.Reply]:
    if response is None:
        if task.has_sender:
            return []
        raise _Refusal(
            "Expected an 'InferenceResponse' object in the execute function return list, found "
            "None for a request whose response sender was not used."
        )
    if type(response) is not InferenceResponse:
        raise _Refusal(
            "Expected an 'InferenceResponse' object in the execute function return list, found "
            f"type '{type(response)}'."
        )
    if task.has_sender and task.answered:
        raise _Refusal(
            "Expected a None object in the execute function return list for a request that was "
            "answered by its response sender."
        )
    return [task.reply(response)]


def _request(
    form: Form, member: wire.Member, task: Task, shared: memory.Inputs
) -> InferenceRequest:
    inputs = []
    for (name, datatype, shape), raw in zip(form.inputs, member.tensors):  # noqa: B905
        if type(raw) is wire.Range:
            task.inputs = shared
            raw = shared.view(raw)  # noqa: PLW2901
        inputs.append(Tensor.of_raw(name, datatype, shape, raw))
    if len(member.tensors) > len(inputs):
        task.room = member.tensors[-1]
    meta = json.loads(member.meta) if member.meta else {}
    return received(meta, inputs, form.outputs, task)


async def _awaited(answer: Any) -> Any:
    return await answer
