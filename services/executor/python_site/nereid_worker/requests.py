"""Requests: those that a model gets, and those that it makes to other models."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from . import mesh
from .errors import TritonModelException
from .responses import parameters_text
from .tensors import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .responses import InferenceResponseSender
    from .tasks import Task

MEMORY_GPU, MEMORY_CPU = 0, 1
RELEASE_ALL, RELEASE_RESCHEDULE = 1, 2


class PreferredMemory:
    """Where a model would like outputs to lie. Here they are always in the CPU's memory."""

    def __init__(self, preferred_memory_type: int, preferred_device_id: int = 0) -> None:
        self.preferred_memory_type = preferred_memory_type
        self.preferred_device_id = preferred_device_id


class InferenceTrace:
    """What tells which trace a request belongs to."""

    __slots__ = ("_context",)

    def __init__(self, context: str | None = None) -> None:
        self._context = context

    def get_context(self) -> str | None:
        """W3C's trace context as JSON; None: the request is not traced."""
        return self._context


class InferenceRequest:
    """A request to a model."""

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Iterable[Tensor] = (),
        requested_output_names: Iterable[str] = (),
        model_name: str = "",
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        if not isinstance(request_id, str) or not isinstance(model_name, str):
            raise TypeError("InferenceRequest(): request_id and model_name must be texts")
        if not isinstance(correlation_id, (int, str)):
            raise TritonModelException("Correlation ID must be integer or string")
        self._inputs = list(inputs)
        if any(type(tensor) is not Tensor for tensor in self._inputs):
            raise TypeError("InferenceRequest(): inputs must be Tensors")
        self._request_id = request_id
        self._correlation_id = correlation_id
        self._outputs = list(requested_output_names)
        self._model_name, self._model_version = model_name, model_version
        self._flags, self._timeout = flags, timeout
        self._preferred_memory = preferred_memory
        self._trace = trace or InferenceTrace()
        self._parameters = "{}" if parameters is None else parameters_text(parameters) or "{}"
        self._sender: InferenceResponseSender | None = None
        self._open: Callable[[], InferenceResponseSender] | None = None
        self._cancelled: Callable[[], bool] = bool

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def request_id(self) -> str:
        return self._request_id

    def correlation_id(self) -> int | str:
        return self._correlation_id

    def flags(self) -> int:
        return self._flags

    def set_flags(self, flags: int) -> None:
        self._flags = flags

    def timeout(self) -> int:
        """The client's limit on queueing, in microseconds; 0: none."""
        return self._timeout

    def parameters(self) -> str:
        """As JSON."""
        return self._parameters

    def trace(self) -> InferenceTrace:
        return self._trace

    def requested_output_names(self) -> set[str]:
        return set(self._outputs)

    def is_cancelled(self) -> bool:
        """Whether nobody waits for the responses any more."""
        return self._cancelled()

    def get_response_sender(self) -> InferenceResponseSender:
        """What sends responses; only for requests that the model got."""
        if self._sender is None:
            if self._open is None:
                raise TritonModelException("Response factory does not exist for this request.")
            self._sender = self._open()
        return self._sender

    def set_release_flags(self, flags: int) -> None:
        """Say what becomes of the request when execute() returns."""
        if flags not in (RELEASE_ALL, RELEASE_RESCHEDULE):
            raise TritonModelException(
                "Release flags must be either TRITONSERVER_REQUEST_RELEASE_ALL or "
                "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE."
            )
        if flags == RELEASE_RESCHEDULE:
            raise TritonModelException("requests cannot be rescheduled: that is not offered yet")

    def exec(self, decoupled: bool = False) -> Any:
        """Have a model execute it, and wait for the response.

        decoupled: the model may give any number; what comes back is to be iterated over.
        """
        self._check_model()
        if decoupled:
            return mesh.ask_many(self)
        return mesh.ask_once(self).result()

    def async_exec(self, decoupled: bool = False) -> Any:
        """As exec, to be awaited."""
        self._check_model()
        if decoupled:
            return _at_once(mesh.ask_many(self))
        return asyncio.wrap_future(mesh.ask_once(self))

    def _check_model(self) -> None:
        if not self._model_name:
            raise TritonModelException("the request names no model that could execute it")


async def _at_once(value: Any) -> Any:
    return value


def received(
    meta: dict[str, Any],
    inputs: list[Tensor],
    outputs: list[str],
    task: Task,
) -> InferenceRequest:
    """A request that the model gets; meta is what the executor says of it beside the tensors."""
    request = InferenceRequest.__new__(InferenceRequest)
    request._inputs = inputs
    request._outputs = outputs
    request._request_id = meta.get("id", "")
    request._correlation_id = meta.get("correlation_id", 0)
    request._flags = meta.get("flags", 0)
    request._timeout = meta.get("timeout_us", 0)
    parameters = meta.get("parameters")
    request._parameters = _compact(parameters) if parameters else "{}"
    request._trace = InferenceTrace(meta.get("trace"))
    request._model_name, request._model_version = "", -1
    request._preferred_memory = None
    request._sender = None
    request._open = task.sender
    request._cancelled = task.is_cancelled
    return request


def _compact(parameters: dict[str, Any]) -> str:
    return json.dumps(parameters, separators=(",", ":"), ensure_ascii=False)


def get_input_tensor_by_name(inference_request: Any, name: str) -> Tensor | None:
    """The request's input with this name; None: it has none."""
    return next((each for each in inference_request.inputs() if each.name() == name), None)


def get_output_tensor_by_name(inference_response: Any, name: str) -> Tensor | None:
    """The response's output with this name; None: it has none."""
    return next((each for each in inference_response.output_tensors() if each.name() == name), None)
