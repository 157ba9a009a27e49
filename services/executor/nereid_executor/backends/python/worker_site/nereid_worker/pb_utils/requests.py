"""Requests that a model executes, and requests that the model sends to other models."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from ..values.arguments import boolean, instance_of, list_of, signed, text_of, unsigned
from ..values.enums import NamedEnum
from ..values.errors import TritonModelException
from . import model_calls
from .logger import Logger
from .responses import parameters_text
from .tensors import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .responses import InferenceResponseSender

RELEASE_ALL, RELEASE_RESCHEDULE = 1, 2

# Error text of a request that a model without iterative sequences has rescheduled.
NOT_RESCHEDULED = (
    "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not "
    "configured to handle such a flag."
)


class State(Protocol):
    """The worker's state of a request that the model executes."""

    rescheduled: bool

    def make_sender(self) -> InferenceResponseSender:
        """Return a sender for the request's responses."""


class Execution(Protocol):
    """The batch of a request that the model executes."""

    number: int
    iterative: bool

    def is_cancelled(self, member: int) -> bool:
        """Return whether the client has cancelled the request of this member."""

    def state_of(self, request: InferenceRequest) -> State:
        """Return the request's state; the first call makes it."""


class MemoryType(NamedEnum):
    """Kinds of memory: `TRITONSERVER_MEMORY_CPU` and `TRITONSERVER_MEMORY_GPU`."""

    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1


MEMORY_GPU, MEMORY_CPU = MemoryType


class PreferredMemory:
    """A preference for the outputs' memory. It has no effect: outputs are in the CPU's memory."""

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        self.preferred_memory_type: MemoryType = instance_of(
            preferred_memory_type, MemoryType, "preferred_memory_type"
        )
        self.preferred_device_id = signed(preferred_device_id, "preferred_device_id")


class InferenceTrace:
    """The trace that a request belongs to; models pass it on with requests to other models."""

    __slots__ = ("_context",)

    def __init__(self, context: str | None = None) -> None:
        self._context = context

    def get_context(self) -> str | None:
        """Return W3C's headers traceparent and tracestate as JSON; None if no trace exists."""
        return self._context


_UNTRACED = InferenceTrace()
_ANY_MEMORY = PreferredMemory(MEMORY_CPU)


class InferenceRequest:
    """A request to a model: one that `execute` gets, or one that the model makes."""

    # These are class attributes, because most requests keep all of the defaults.
    _request_id = ""
    _correlation_id: int | str = 0
    _model_name, _model_version = "", -1
    _flags = _timeout = 0
    _trace = _UNTRACED
    _parameters = "{}"
    # These are set if the model executes the request: batch, place in the batch, and state.
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
        """Make a request to another model; inputs, output names and model_name are required.

        correlation_id: 0 means no sequence. model_version: with -1 the server chooses. timeout:
        limit on queueing in microseconds; 0 means none. preferred_memory has no effect. Raises
        TypeError for a missing or wrong argument, TritonModelException or RuntimeError for an
        unsupported value.
        """
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
        # The value is checked but not used: outputs are always in the CPU's memory.
        instance_of(preferred_memory, PreferredMemory, "preferred_memory")
        self._trace = instance_of(trace, InferenceTrace, "trace")
        self._parameters = "{}" if parameters is None else parameters_text(parameters) or "{}"

    def inputs(self) -> list[Tensor]:
        """Return a new list of the input tensors."""
        return self._inputs[:]

    def request_id(self) -> str:
        """Return the request's id; empty if it has none."""
        return self._request_id

    def correlation_id(self) -> int | str:
        """Return the sequence's id; 0 if the request belongs to no sequence."""
        return self._correlation_id

    def flags(self) -> int:
        """Return the request's flags: the sum of SEQUENCE_START and SEQUENCE_END, if set."""
        return self._flags

    def set_flags(self, flags: int, /) -> None:
        """Set the flags as in flags(); raise TypeError for no unsigned integer of 32 bits."""
        self._flags = unsigned(flags, "flags")

    def timeout(self) -> int:
        """Return the client's limit on queueing in microseconds; 0 means no limit."""
        return self._timeout

    def parameters(self) -> str:
        """Return the parameters as JSON; "{}" if there are none."""
        return self._parameters

    def trace(self) -> InferenceTrace:
        """Return the trace that the request belongs to."""
        return self._trace

    def requested_output_names(self) -> set[str]:
        """Return the names of the outputs that the client wants."""
        return set(self._outputs)

    def is_cancelled(self) -> bool:
        """Return whether the client has cancelled the request; False for a model's own request."""
        return self._execution is not None and self._execution.is_cancelled(self._member)

    def get_response_sender(self) -> InferenceResponseSender:
        """Return the request's response sender, for responses that execute() does not return.

        If execute() returns None for a request, a model that is not decoupled sends its one
        response later. Raises TritonModelException if the model has made the request itself.
        """
        if self._sender is None:
            if self._execution is None:
                raise TritonModelException("Response factory does not exist for this request.")
            self._sender = self._execution.state_of(self).make_sender()
        return self._sender

    def set_release_flags(self, flags: int, /) -> None:
        """Choose what happens to the request when execute() returns.

        RELEASE_RESCHEDULE has the request executed again in a later batch; execute() must return
        None for it. Without iterative sequences the request then fails. RELEASE_ALL undoes this.
        """
        flags = unsigned(flags, "flags")
        execution = self._execution
        if execution is None or (flags != RELEASE_RESCHEDULE and self._state is None):
            return
        rescheduled = flags == RELEASE_RESCHEDULE
        if rescheduled and not execution.iterative:
            Logger.log_error(f"Failed to release request: {NOT_RESCHEDULED}")
        execution.state_of(self).rescheduled = rescheduled

    def exec(self, decoupled: bool = False) -> Any:
        """Have the named model execute the request, and wait for the response.

        If decoupled is true, the result is an iterator over any number of responses. If the other
        model fails, the response has an `error()`. Raises TritonModelException if the request is
        too large, or the caller is not a model that is served.
        """
        if boolean(decoupled, "decoupled"):
            return model_calls.infer_stream(self)
        return model_calls.infer_and_wait(self)

    def async_exec(self, decoupled: bool = False) -> Any:
        """Execute the request as `exec` does; the result must be awaited, and can be cancelled.

        If decoupled is true, the iterator is returned with its first response: models may read it
        with a plain `for`, which would block the event loop. Raises RuntimeError if no event loop
        runs.
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
    """Return the request's input with this name, or None if it has none."""
    return _named(inference_request.inputs(), name)


def get_output_tensor_by_name(inference_response: Any, name: str) -> Tensor | None:
    """Return the response's output with this name, or None if it has none."""
    return _named(inference_response.output_tensors(), name)


def _named(tensors: list[Tensor], name: str) -> Tensor | None:
    for tensor in tensors:
        if tensor._name == name:
            return tensor
    return None
