"""What a model can ask of the mesh that serves it: other models' answers, loads and unloads."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import weakref
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from . import wire
from .errors import ErrorCode, TritonError, TritonModelException, text_of
from .link import link
from .responses import InferenceResponse
from .tensors import Tensor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from .requests import InferenceRequest

# A model that takes its responses more slowly than they come has the other one wait.
_MOST_WAITING = 64
_FEW_WAITING = 16


def get_model_dir() -> str:
    """The directory of the model's version."""
    return link().model_dir


def load_model(model_name: str, config: str = "", files: dict[str, bytes] | None = None) -> None:
    """Have a model loaded, or loaded anew, from its directory or from these files.

    Raises:
        TritonModelException: it cannot be.
    """
    files = files or {}
    model_name = text_of(model_name, "model_name")
    about = {"what": "load", "model": model_name, "config": config, "files": list(files)}
    _ask(about, list(files.values()), "load model")


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Have a model unloaded; raises TritonModelException."""
    model_name = text_of(model_name, "model_name")
    about = {"what": "unload", "model": model_name, "dependents": bool(unload_dependents)}
    _ask(about, (), "unload model")


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Whether a model can be asked now."""
    about = {
        "what": "ready",
        "model": text_of(model_name, "model_name"),
        "version": text_of(model_version, "model_version"),
    }
    return bool(_ask(about, (), "check model readiness"))


def _ask(about: dict[str, Any], tensors: Any, verb: str) -> Any:
    future: Future[wire.Call] = Future()
    link().call(about, tensors, future.set_result)
    wire_response = future.result()
    if wire_response.flags & wire.ERROR:
        process = f"Failed to process the request for model '{link().instance}'"
        text = f"Failed to {verb}: {process}, message: {_error_of(wire_response).message()}"
        raise TritonModelException(text)
    return json.loads(wire_response.meta) if wire_response.meta else None


def ask_once(request: InferenceRequest) -> Future[InferenceResponse]:
    """Send a request to a model that gives one response."""
    future: Future[InferenceResponse] = Future()
    about, tensors = _told(request)
    number = link().call(about, tensors, partial(_settle, future))
    future.add_done_callback(partial(_stop, number))
    return future


def _settle(future: Future[InferenceResponse], wire_response: wire.Call) -> None:
    """Called by the thread that reads; whoever waited may have been cancelled."""
    if future.set_running_or_notify_cancel():
        future.set_result(_response_of(wire_response))


def _stop(number: int, future: Future[InferenceResponse]) -> None:
    if future.cancelled():
        link().abandon(number)


def ask_many(request: InferenceRequest) -> ResponseIterator:
    """Send a request to a model that may give any number of responses."""
    responses = ResponseIterator()
    about, tensors = _told(request)
    about["decoupled"] = True
    # Nobody may hold it but the model: when that lets go of it, nobody wants the rest.
    held = weakref.ref(responses)

    def take(wire_response: wire.Call) -> None:
        there = held()
        if there is not None:
            there.take(wire_response)

    responses.begin(link().call(about, tensors, take))
    return responses


def _told(request: InferenceRequest) -> tuple[dict[str, Any], list[Any]]:
    inputs = request.inputs()
    context = request.trace().get_context()
    about = {
        "what": "infer",
        "model": request._model_name,
        "version": request._model_version,
        "id": request.request_id(),
        "inputs": [(each._name, each._datatype, each._shape) for each in inputs],
        "outputs": request._outputs,
        "parameters": json.loads(request.parameters()),
        "correlation_id": request.correlation_id(),
        "flags": request.flags(),
        "timeout_us": request.timeout(),
        "trace": json.loads(context).get("traceparent", "") if context else "",
        **link().asker(),
    }
    return about, [each.raw() for each in inputs]


def _response_of(wire_response: wire.Call) -> InferenceResponse:
    if wire_response.flags & wire.ERROR:
        return InferenceResponse(error=_error_of(wire_response))
    if wire_response.flags & wire.EMPTY:
        return InferenceResponse()
    about = json.loads(wire_response.meta)
    tensors = [
        Tensor.of_raw(name, datatype, tuple(shape), raw)
        for (name, datatype, shape), raw in zip(about["outputs"], wire_response.tensors)  # noqa: B905
    ]
    return InferenceResponse(tensors, parameters=about["parameters"] or None)


def _error_of(wire_response: wire.Call) -> TritonError:
    code, message = json.loads(wire_response.meta)
    return TritonError(message, ErrorCode[code])


class ResponseIterator:
    """The responses to one request, as they come; to be iterated over, also asynchronously.

    Whoever has seen them all may begin again. The end of a decoupled model's responses, if it was
    told by itself, is a response without tensors: as Triton has it.
    """

    def __init__(self) -> None:
        self._number = 0
        self._changed = threading.Condition()
        self._responses: list[InferenceResponse] = []
        self._next = 0
        self._ended = False
        self._paused = False
        self._sleepers: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def begin(self, number: int) -> None:
        self._number = number

    def take(self, wire_response: wire.Call) -> None:
        """Called by the thread that reads."""
        pause = False
        more = bool(wire_response.flags & wire.MORE)
        with self._changed:
            if not (more and wire_response.flags & wire.EMPTY):
                self._responses.append(_response_of(wire_response))
            self._ended = self._ended or not more
            if len(self._responses) - self._next > _MOST_WAITING and not (
                self._paused or self._ended
            ):
                self._paused = pause = True
            self._changed.notify_all()
            sleepers, self._sleepers = self._sleepers, []
        for loop, sleeper in sleepers:
            # A loop that has ended has nobody who waits.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_wake, sleeper)
        if pause:
            self._control("pause")

    def cancel(self) -> None:
        """No more responses are wanted."""
        with self._changed:
            ended, self._ended = self._ended, True
            self._changed.notify_all()
        if not ended:
            link().forget(self._number)
            self._control("cancel")

    def __del__(self) -> None:
        if not self._ended:
            with contextlib.suppress(Exception):
                link().abandon(self._number)

    def __iter__(self) -> Iterator[InferenceResponse]:
        with self._changed:
            if self._ended and self._next == len(self._responses):
                self._next = 0
        return self

    def __next__(self) -> InferenceResponse:
        with self._changed:
            while not (self._is_there or self._ended):
                self._changed.wait()
            if not self._is_there:
                raise StopIteration
            response = self._responses[self._next]
            self._next += 1
        self._taken()
        return response

    def __aiter__(self) -> AsyncIterator[InferenceResponse]:
        iter(self)
        return self

    async def __anext__(self) -> InferenceResponse:
        loop = asyncio.get_running_loop()
        while True:
            with self._changed:
                if self._is_there:
                    response = self._responses[self._next]
                    self._next += 1
                    break
                if self._ended:
                    raise StopAsyncIteration
                sleeper = loop.create_future()
                self._sleepers.append((loop, sleeper))
            await sleeper
        self._taken()
        return response

    @property
    def _is_there(self) -> bool:
        return self._next < len(self._responses)

    def _taken(self) -> None:
        if self._paused and len(self._responses) - self._next < _FEW_WAITING and not self._ended:
            self._paused = False
            self._control("resume")

    def _control(self, kind: str) -> None:
        link().call({"what": kind, "call": self._number}, (), lambda _: None)


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
