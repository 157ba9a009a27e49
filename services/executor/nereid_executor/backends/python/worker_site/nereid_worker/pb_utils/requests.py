"""Requests: those that a model gets, and those that it sends to other models."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from . import model_calls
from .arguments import boolean, instance_of, list_of, signed, text_of, unsigned
from .enums import NamedEnum
from .errors import TritonModelException
from .logger import Logger
from .responses import parameters_text
from .tensors import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .responses import InferenceResponseSender

RELEASE_ALL, RELEASE_RESCHEDULE = 1, 2

# For a request that its model rescheduled.
NOT_RESCHEDULED = (
    "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not "
    "configured to handle such a flag."
)


class State(Protocol):
    """What the worker knows of a request that the model got."""

    rescheduled: bool

    def make_sender(self) -> InferenceResponseSender:
        """What sends its responses."""


class Execution(Protocol):
    """The batch of a request that the model got."""

    number: int
    # Its requests may be rescheduled.
    iterative: bool

    def is_cancelled(self, member: int) -> bool:
        """Whether this member's client has cancelled it."""

    def state_of(self, request: InferenceRequest) -> State:
        """The request's state, made when first asked for."""


class MemoryType(NamedEnum):
    """Kinds of memory."""

    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1


MEMORY_GPU, MEMORY_CPU = MemoryType


class PreferredMemory:
    """Where a model would like its outputs. Here they are always in the CPU's memory."""

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        self.preferred_memory_type: MemoryType = instance_of(
            preferred_memory_type, MemoryType, "preferred_memory_type"
        )
        self.preferred_device_id = signed(preferred_device_id, "preferred_device_id")


class InferenceTrace:
    """The trace that a request belongs to."""

    __slots__ = ("_context",)

    def __init__(self, context: str | None = None) -> None:
        self._context = context

    def get_context(self) -> str | None:
        """W3C's trace context as JSON; None: the request is not traced."""
        return self._context


_UNTRACED = InferenceTrace()
_ANY_MEMORY = PreferredMemory(MEMORY_CPU)


class InferenceRequest:
    """A request to a model."""

    # Defaults on the class: most requests that models get change none of them.
    _request_id = ""
    _correlation_id: int | str = 0
    _model_name, _model_version = "", -1
    _flags = _timeout = 0
    _trace = _UNTRACED
    _parameters = "{}"
    # Of one that the model got: its batch, its place there, and its state if it has a sender.
    _execution: Execution | None = None
    _member = 0
    _state: State | None = None
    _sender: InferenceResponseSender | None = None

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] | None = None,
        requested_output_names: Sequence[str] | None = None,
        model_name: str | None = None,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory = _ANY_MEMORY,
        trace: InferenceTrace = _UNTRACED,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        if inputs is None or requested_output_names is None or model_name is None:
            raise TypeError(
                "InferenceRequest(): inputs, requested_output_names and model_name are required"
            )
        self._request_id = text_of(request_id, "request_id")
        self._model_name = text_of(model_name, "model_name")
        self._correlation_id = _correlation_of(correlation_id)
        self._inputs: list[Tensor] = list_of(inputs, "inputs")
        for tensor in self._inputs:
            if tensor is None:
                raise TritonModelException(
                    f"Input tensor for request with id '{self._request_id}' and model name "
                    f"'{self._model_name}' should not be empty."
                )
            instance_of(tensor, Tensor, "inputs")
        names = list_of(requested_output_names, "requested_output_names")
        self._outputs = [text_of(name, "requested_output_names") for name in names]
        self._model_version = signed(model_version, "model_version")
        self._flags, self._timeout = unsigned(flags, "flags"), unsigned(timeout, "timeout", 64)
        # Outputs are always in the CPU's memory.
        instance_of(preferred_memory, PreferredMemory, "preferred_memory")
        self._trace = instance_of(trace, InferenceTrace, "trace")
        self._parameters = "{}" if parameters is None else parameters_text(parameters) or "{}"

    def inputs(self) -> list[Tensor]:
        return self._inputs[:]

    def request_id(self) -> str:
        return self._request_id

    def correlation_id(self) -> int | str:
        return self._correlation_id

    def flags(self) -> int:
        return self._flags

    def set_flags(self, flags: int, /) -> None:
        self._flags = unsigned(flags, "flags")

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
        """Whether the client has cancelled the request."""
        return self._execution is not None and self._execution.is_cancelled(self._member)

    def get_response_sender(self) -> InferenceResponseSender:
        """The response sender; only for requests that the model got."""
        if self._sender is None:
            if self._execution is None:
                raise TritonModelException("Response factory does not exist for this request.")
            self._sender = self._execution.state_of(self).make_sender()
        return self._sender

    def set_release_flags(self, flags: int, /) -> None:
        """Choose what happens to the request when execute() returns."""
        flags = unsigned(flags, "flags")
        execution = self._execution
        if execution is None or (flags != RELEASE_RESCHEDULE and self._state is None):
            return
        rescheduled = flags == RELEASE_RESCHEDULE
        if rescheduled and not execution.iterative:
            Logger.log_error(f"Failed to release request: {NOT_RESCHEDULED}")
        execution.state_of(self).rescheduled = rescheduled

    def exec(self, decoupled: bool = False) -> Any:
        """Have a model execute it, and wait for the response.

        decoupled: the model may send any number; returns an iterator over them.
        """
        if boolean(decoupled, "decoupled"):
            return model_calls.infer_stream(self)
        return model_calls.infer_and_wait(self)

    def async_exec(self, decoupled: bool = False) -> Any:
        """As exec, to be awaited, in a running event loop.

        The iterator comes with the first response: models read it with a plain `for`, which would
        keep the event loop from their other requests until then.
        """
        decoupled = boolean(decoupled, "decoupled")
        loop = asyncio.get_running_loop()
        if decoupled:
            return loop.create_task(model_calls.infer_stream(self).arrival())
        return asyncio.wrap_future(model_calls.infer(self), loop=loop)


def _correlation_of(value: Any) -> int | str:
    if isinstance(value, str):
        return text_of(value, "correlation_id")
    if value is None:
        raise TypeError("correlation_id: None is no id")
    if not isinstance(value, int):
        raise TritonModelException("Correlation ID must be integer or string")
    if not 0 <= value < 1 << 64:
        raise RuntimeError(f"correlation_id: {value} is out of range")
    return int(value)


def get_input_tensor_by_name(inference_request: Any, name: str) -> Tensor | None:
    """The request's input with this name; None: it has none."""
    return _named(inference_request.inputs(), name)


def get_output_tensor_by_name(inference_response: Any, name: str) -> Tensor | None:
    """The response's output with this name; None: it has none."""
    return _named(inference_response.output_tensors(), name)


def _named(tensors: list[Tensor], name: str) -> Tensor | None:
    for tensor in tensors:
        if tensor._name == name:
            return tensor
    return None
