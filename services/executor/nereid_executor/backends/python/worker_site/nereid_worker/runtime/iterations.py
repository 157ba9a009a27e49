"""Tracks the requests of models with iterative sequences, which may get a request several times."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from ..protocol import wire
from ..values.errors import TritonModelException
from .execution import RequestState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..pb_utils.requests import InferenceRequest
    from ..pb_utils.responses import InferenceResponse
    from .execution import BatchExecution

# Maximum number of responses that may wait for their request's next iteration.
_MAX_UNSENT = 256


class IterativeState(RequestState):
    """The state of a request in all iterations. Responses between iterations wait for the next."""

    def __init__(
        self, batch: BatchExecution, member: int, outputs: frozenset[str], number: str
    ) -> None:
        super().__init__(batch, member, outputs)
        self.number = number
        self._lock = threading.RLock()
        # Responses that wait for the next iteration. None while the request is in a batch.
        self._unsent: list[tuple[InferenceResponse | None, bool]] | None = None

    def suspend(self) -> None:
        """Make responses wait from now on, because the iteration has ended."""
        with self._lock:
            self._unsent = []

    def resume(self, batch: BatchExecution, member: int) -> None:
        """Begin the next iteration, in this batch, and send the responses that have waited."""
        with self._lock:
            self._batch, self.member = batch, member
            self.rescheduled = self.responded = False
            unsent, self._unsent = self._unsent, None
            for response, final in unsent or ():
                super()._send(response, final)

    def _send(self, response: InferenceResponse | None, final: bool) -> None:
        # The wait may be long, so the lock is not held.
        resumed = self.resumed
        if resumed is not None and not self.is_cancelled():
            resumed.wait()
        with self._lock:
            if self._unsent is None:
                super()._send(response, final)
            elif len(self._unsent) < _MAX_UNSENT:
                self._unsent.append((response, final))
            else:
                raise TritonModelException(
                    f"Unable to send response. {_MAX_UNSENT} responses wait for the next "
                    "iteration of the request."
                )


class Iterations:
    """Keeps the states of one model's requests between their iterations."""

    def __init__(self) -> None:
        # Key: a request's number. A state is forgotten if the model keeps no sender for its
        # request.
        self._suspended: weakref.WeakValueDictionary[str, IterativeState]
        self._suspended = weakref.WeakValueDictionary()

    def begin_request(
        self, execution: BatchExecution, request: InferenceRequest, iteration: str
    ) -> None:
        """Set a request's state. iteration: <number of the request>.<number of the iteration>."""
        number, _, index = iteration.partition(".")
        member = request._member
        state = self._suspended.pop(number, None)
        if state is None or index == "0":
            state = IterativeState(execution, member, execution.requested_outputs[member], number)
        execution.add_state(request, state)
        if state._batch is not execution or state.rescheduled:
            state.resume(execution, member)

    def end_iteration(self, requests: Iterable[InferenceRequest]) -> list[wire.Reply]:
        """Return replies for the executed requests that the model wants again."""
        replies = []
        for request in requests:
            state = request._state
            if not isinstance(state, RequestState) or not state.rescheduled or state.responded:
                continue
            if isinstance(state, IterativeState):
                state.suspend()
                self._suspended[state.number] = state
            else:
                # A null request or a warm-up request does not come again, so its sender must not
                # wait.
                state.responded = True
            replies.append(wire.Reply(request._member, wire.RESCHEDULED, b"", ()))
        return replies
