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

from . import wire
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

    def __init__(self, link: Link, model: Any, name: str, began: Any, *, decoupled: bool) -> None:
        """began: memory that tells the executor which batch was begun last."""
        self._link = link
        self._channel = link.channel
        self._model = model
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
        self._execute = model.execute
        self._loop: asyncio.AbstractEventLoop | None = None
        if inspect.iscoroutinefunction(model.execute):
            self._execute = self._execute_in_loop
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="asyncio", daemon=True).start()

    def run(self) -> None:
        """Until FINALIZE came and is done; raises wire.LostError when the executor is gone."""
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
        tasks = []
        requests = []
        for place, (form, member) in enumerate(members):
            task = Task(execution, place, form.wanted)
            self._open[number, place] = task
            tasks.append(task)
            requests.append(_request(form, member, task))
        try:
            # Until now nobody can have cancelled it in this process.
            returned = self._execute(requests)
            replies = self._replies(tasks, returned)
        except BaseException as error:
            replies = self._failures(tasks, error_text(error))
        for reply in replies:
            tasks[reply.member].answered = True
        try:
            execution.send(*replies, flags=wire.FREE)
        except wire.WireError as error:
            replies = self._failures(tasks, str(error), again=True)
            execution.send(*replies, flags=wire.FREE)
        execution.returned = True

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


def _request(form: Form, member: wire.Member, task: Task) -> InferenceRequest:
    inputs = [
        Tensor.of_raw(name, datatype, shape, raw)
        for (name, datatype, shape), raw in zip(form.inputs, member.tensors)  # noqa: B905
    ]
    meta = json.loads(member.meta) if member.meta else {}
    return received(meta, inputs, form.outputs, task)


async def _awaited(answer: Any) -> Any:
    return await answer
