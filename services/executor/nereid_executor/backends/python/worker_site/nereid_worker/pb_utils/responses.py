"""Responses, and the senders that models use for responses that execute() does not return."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from ..values.arguments import instance_of, list_of, text_of, unsigned
from ..values.errors import TritonError, TritonModelException
from .tensors import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FINAL = 1


class InferenceResponse:
    """A response to a request: output tensors, or an error."""

    __slots__ = ("_error", "_output_tensors", "_parameters")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        """Make a response. If there is an error, the outputs are ignored.

        Clients get only the outputs that they have requested. Raises TypeError or
        TritonModelException for a wrong argument.
        """
        # The usual types are checked without calls, because a model responds to every request.
        if type(output_tensors) is list:
            self._output_tensors: list[Tensor] = output_tensors[:]
        else:
            self._output_tensors = list_of(output_tensors, "output_tensors")
        for tensor in self._output_tensors:
            if type(tensor) is not Tensor:
                _check_output(tensor)
        if error is not None:
            instance_of(error, TritonError, "error")
        self._error = error
        self._parameters = "" if parameters is None else parameters_text(parameters)

    def output_tensors(self) -> list[Tensor]:
        """Return a new list of the output tensors."""
        return self._output_tensors[:]

    def has_error(self) -> bool:
        """Return whether the request has failed."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """Return the error, or None if the request has not failed."""
        return self._error

    def parameters(self) -> str:
        """Return the parameters as JSON; the text is empty if there are none."""
        return self._parameters


def _check_output(tensor: Any) -> None:
    if tensor is None:
        raise TritonModelException("Output tensor for inference response should not be empty.")
    instance_of(tensor, Tensor, "output_tensors")


def parameters_text(parameters: Any) -> str:
    """Return parameters as JSON; empty if there are none.

    Raises TritonModelException for an unsupported type, TypeError for a value that cannot be
    encoded.
    """
    if not isinstance(parameters, dict):
        # As in Triton's text, the name of a dict is that of C++.
        raise TritonModelException(f"Expect N8pybind114dictE, got {type(parameters)}")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(
                f"Expect parameters keys to have type str, found type {type(key)}"
            )
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException(
                f"Expect parameters values to have type bool/int/str, found type {type(value)}"
            )
        text_of(key, "parameters")
        if isinstance(value, str):
            text_of(value, "parameters")
        elif not -(1 << 63) <= value < 1 << 63:
            raise TypeError(f"parameters: {value} is out of range")
    return json.dumps(parameters) if parameters else ""


class InferenceResponseSender:
    """Sends responses to one request, from any thread, until the final one.

    If the model drops the request and the sender before, the client gets an error.
    """

    def __init__(
        self,
        send_response: Callable[[InferenceResponse | None, bool], None],
        is_cancelled: Callable[[], bool],
        *,
        decoupled: bool,
    ) -> None:
        self._send_response = send_response
        self._is_cancelled = is_cancelled
        self._decoupled = decoupled
        self._lock = threading.Lock()
        self._sent = 0
        self._closed = False

    def is_cancelled(self) -> bool:
        """Return whether the client has cancelled the request."""
        return self._is_cancelled()

    def close(self) -> None:
        """Refuse further responses: `send` raises TritonModelException from now on."""
        self._closed = True

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send a response, the final flag, or both; wait while the client cannot keep up.

        flags: TRITONSERVER_RESPONSE_COMPLETE_FINAL with the last response or alone after it,
        otherwise 0. A model that is not decoupled sends exactly one, final response. Raises
        TritonModelException after the final response, and for wrong arguments.
        """
        if response is not None:
            instance_of(response, InferenceResponse, "send(): response")
        flags = unsigned(flags, "send(): flags")
        with self._lock:
            self._check(response, flags)
            if response is not None:
                self._sent += 1
            final = flags == FINAL or not self._decoupled
            self._closed = flags == FINAL
            if response is not None or self._decoupled:
                self._send_response(response, final)

    def _check(self, response: InferenceResponse | None, flags: int) -> None:
        problem = ""
        if response is None and flags == 0:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        if flags not in (0, FINAL):
            problem = f"Unsupported flag '{flags}' provided."
        elif not self._decoupled and response is not None and self._sent:
            problem = "Non-decoupled model cannot send more than one response."
        elif not self._decoupled and response is None and not self._sent:
            problem = "Non-decoupled model cannot send complete final before sending a response."
        elif self._closed:
            problem = "Response sender has been closed."
        if problem:
            raise TritonModelException(f"Unable to send response. {problem}")
