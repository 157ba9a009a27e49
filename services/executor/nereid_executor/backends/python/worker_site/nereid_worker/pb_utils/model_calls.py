"""Calls that a model makes to the mesh: inference with other models, loads, and unloads."""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import threading
import weakref
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from ..connection.executor_connection import current_connection
from ..protocol import wire
from ..values.arguments import boolean, text_of
from ..values.errors import ErrorCode, TritonError, TritonModelException
from .responses import InferenceResponse
from .tensors import Tensor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from ..connection.pending_calls import PendingCalls, Response
    from .requests import InferenceRequest

# Responses that the caller has not consumed. Above the first bound the other model is paused; below
# the second it is resumed.
_PAUSE_ABOVE = 64
_RESUME_BELOW = 16
# Key: a waiting coroutine's future. Value: the iterator that sets it. Event loops hold tasks only
# weakly, so without this reference both could be collected together.
_awaited: dict[asyncio.Future[None], ResponseIterator] = {}


def get_model_dir() -> str:
    """Return the path of the directory with the model's version."""
    return current_connection().model_dir


def load_model(model_name: str, config: str = "", files: dict[str, bytes] | None = None) -> None:
    """Load or reload a model, and wait until that is done; TritonModelException on failure.

    config: JSON that replaces the repository's configuration; empty keeps that one. files maps
    `file:<version>/<name>` to content that replaces the model's directory; config is then required.
    """
    model_name, config = text_of(model_name, "model_name"), text_of(config, "config")
    contents: dict[str, bytes] = {}
    if files is not None:
        if not isinstance(files, dict):
            raise TritonModelException(
                f"failed to load model '{model_name}', files should be a dictionary of file paths "
                "and file contents"
            )
        contents = {text_of(path, "files"): _content(content) for path, content in files.items()}
    message = {"what": "load", "model": model_name, "config": config, "files": list(contents)}
    _call_and_wait(message, list(contents.values()), "load model")


def _content(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(f"Object of type '{type(value).__name__}' is not an instance of 'bytes'")
    return value


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Unload a model; unload_dependents also unloads the models that an ensemble uses.

    Raises TritonModelException if the model cannot be unloaded.
    """
    model_name = text_of(model_name, "model_name")
    dependents = boolean(unload_dependents, "unload_dependents")
    message = {"what": "unload", "model": model_name, "dependents": dependents}
    _call_and_wait(message, (), "unload model")


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Return whether a model can execute requests now; TritonModelException if the query fails."""
    message = {
        "what": "ready",
        "model": text_of(model_name, "model_name"),
        "version": text_of(model_version, "model_version"),
    }
    return bool(_call_and_wait(message, (), "check model readiness"))


def _call_and_wait(message: dict[str, Any], tensors: Any, verb: str) -> Any:
    response = current_connection().calls().call_and_wait(message, tensors, queue.SimpleQueue())
    if response.flags & wire.ERROR:
        process = f"Failed to process the request for model '{current_connection().instance}'"
        text = f"Failed to {verb}: {process}, message: {_error_of(response).message()}"
        raise TritonModelException(text)
    return response.message


def infer_and_wait(request: InferenceRequest) -> InferenceResponse:
    """Send a request to a model that sends one response, and wait for it."""
    calls = current_connection().calls(infer=True)
    # A queue costs half as much as a Future, and needs no cancellation here.
    return _response_of(calls.call_and_wait(*_described(request), queue.SimpleQueue()))


def infer(request: InferenceRequest) -> Future[InferenceResponse]:
    """Send a request to a model that sends one response; a cancelled future cancels the request."""
    future: Future[InferenceResponse] = Future()
    calls = current_connection().calls(infer=True)
    message, tensors = _described(request)
    number = calls.start_call(message, tensors, partial(_settle, future))
    future.add_done_callback(partial(_cancel_call, calls, number))
    return future


def _settle(future: Future[InferenceResponse], response: Response) -> None:
    if future.set_running_or_notify_cancel():
        future.set_result(_response_of(response))


def _cancel_call(calls: PendingCalls, number: int, future: Future[InferenceResponse]) -> None:
    if future.cancelled():
        calls.cancel_call(number)


def infer_stream(request: InferenceRequest) -> ResponseIterator:
    """Send a request to a model that sends any number of responses; return an iterator."""
    calls = current_connection().calls(infer=True)
    responses = ResponseIterator(calls)
    message, tensors = _described(request)
    message["decoupled"] = True
    # The reference is weak, so that the call is cancelled when the model drops the iterator.
    reference = weakref.ref(responses)

    def on_response(response: Response) -> None:
        iterator = reference()
        if iterator is not None:
            iterator.on_response(response)

    responses.begin(calls.start_call(message, tensors, on_response))
    return responses


def _described(request: InferenceRequest) -> tuple[dict[str, Any], list[Any]]:
    inputs = request.inputs()
    context = request.trace().get_context()
    trace = json.loads(context) if context else {}
    parameters = request.parameters()
    message = {
        "what": "infer",
        "model": request._model_name,
        "version": request._model_version,
        "id": request.request_id(),
        "inputs": [(tensor._name, tensor._datatype, tensor._shape) for tensor in inputs],
        "outputs": request._outputs,
        "parameters": json.loads(parameters) if parameters not in ("", "{}") else {},
        "correlation_id": request.correlation_id(),
        "flags": request.flags(),
        "timeout_us": request.timeout(),
        "trace": trace.get("traceparent", ""),
        **current_connection().caller_context(),
    }
    if state := trace.get("tracestate"):
        message["tracestate"] = state
    return message, [tensor.raw() for tensor in inputs]


def _response_of(response: Response) -> InferenceResponse:
    if response.flags & wire.ERROR:
        return InferenceResponse(error=_error_of(response))
    if response.flags & wire.EMPTY:
        return InferenceResponse()
    message = response.message
    tensors = [
        Tensor.of_raw(name, datatype, tuple(shape), raw)
        for (name, datatype, shape), raw in zip(message["outputs"], response.tensors)  # noqa: B905
    ]
    inference_response = InferenceResponse(tensors)
    if message["parameters"]:
        # The parameters are not checked: other backends may send doubles, which models may not.
        inference_response._parameters = json.dumps(message["parameters"])
    return inference_response


def _error_of(response: Response) -> TritonError:
    code, message = response.message
    return TritonError(message, ErrorCode[code])


class ResponseIterator:
    """The responses to one request as they arrive, for `for` and `async for`.

    A new iteration begins again. As on Triton, a final flag without a response appears as an empty
    response. Dropping the iterator early cancels the request.
    """

    def __init__(self, calls: PendingCalls) -> None:
        self._calls = calls
        self._number = 0
        self._changed = threading.Condition()
        self._responses: list[InferenceResponse] = []
        self._next = 0
        self._ended = False
        self._paused = False
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def begin(self, number: int) -> None:
        """Set the number of the call, after the call was sent."""
        self._number = number

    def on_response(self, response: Response) -> None:
        """Add a response. The reading thread calls this."""
        pause = False
        more = bool(response.flags & wire.MORE)
        with self._changed:
            if not (more and response.flags & wire.EMPTY):
                self._responses.append(_response_of(response))
            self._ended = self._ended or not more
            if len(self._responses) - self._next > _PAUSE_ABOVE and not (
                self._paused or self._ended
            ):
                self._paused = pause = True
            self._changed.notify_all()
            waiters, self._waiters = self._waiters, []
        for loop, waiter in waiters:
            # A closed event loop raises RuntimeError.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_wake, waiter)
        if pause:
            self._send_control("pause")

    def cancel(self) -> None:
        """Cancel the request; iteration ends after the responses that have already arrived."""
        with self._changed:
            ended, self._ended = self._ended, True
            self._changed.notify_all()
        if not ended:
            self._calls.forget_call(self._number)
            self._send_control("cancel")

    def __del__(self) -> None:
        if not self._ended:
            with contextlib.suppress(Exception):
                self._calls.cancel_call(self._number)

    def __iter__(self) -> Iterator[InferenceResponse]:
        with self._changed:
            if self._ended and self._next == len(self._responses):
                self._next = 0
        return self

    def __next__(self) -> InferenceResponse:
        with self._changed:
            while not (self._has_next or self._ended):
                self._changed.wait()
            if not self._has_next:
                raise StopIteration
            response = self._responses[self._next]
            self._next += 1
        self._resume_if_drained()
        return response

    def __aiter__(self) -> AsyncIterator[InferenceResponse]:
        iter(self)
        return self

    async def __anext__(self) -> InferenceResponse:
        while True:
            await self.arrival()
            with self._changed:
                if self._has_next:
                    response = self._responses[self._next]
                    self._next += 1
                    break
                if self._ended:
                    raise StopAsyncIteration
        self._resume_if_drained()
        return response

    async def arrival(self) -> ResponseIterator:
        """Wait until there is a response to read, or no more will come; return the iterator."""
        loop = asyncio.get_running_loop()
        while True:
            with self._changed:
                if self._has_next or self._ended:
                    return self
                waiter = loop.create_future()
                self._waiters.append((loop, waiter))
            _awaited[waiter] = self
            try:
                await waiter
            finally:
                del _awaited[waiter]

    @property
    def _has_next(self) -> bool:
        return self._next < len(self._responses)

    def _resume_if_drained(self) -> None:
        if self._paused and len(self._responses) - self._next < _RESUME_BELOW and not self._ended:
            self._paused = False
            self._send_control("resume")

    def _send_control(self, kind: str) -> None:
        self._calls.start_call({"what": kind, "call": self._number}, (), lambda _: None)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
