"""Requests of models with iterative sequences, which may get a request again in a batch to come.

The model may keep a response sender over all iterations of its request.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from ..pb_utils.errors import TritonModelException
from ..protocol import wire
from .execution import RequestState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..pb_utils.requests import InferenceRequest
    from ..pb_utils.responses import InferenceResponse
    from .execution import BatchExecution

# Of responses that wait for their request's next iteration.
_MOST_UNSENT = 256


class IterativeState(RequestState):
    """A RequestState for all iterations of a request. Between them its senders' responses wait."""

    def __init__(
        self, batch: BatchExecution, member: int, outputs: frozenset[str], number: str
    ) -> None:
        """number: identifies the request at its instance."""
        super().__init__(batch, member, outputs)
        self.number = number
        self._lock = threading.RLock()
        # None: the request is in a batch.
        self._unsent: list[tuple[InferenceResponse | None, bool]] | None = None

    def suspend(self) -> None:
        """Its iteration has ended."""
        with self._lock:
            self._unsent = []

    def resume(self, batch: BatchExecution, member: int) -> None:
        """The request is in this batch, which begins."""
        with self._lock:
            self._batch, self.member = batch, member
            self.rescheduled = self.responded = False
            unsent, self._unsent = self._unsent, None
            for response, final in unsent or ():
                super()._send(response, final)

    def _send(self, response: InferenceResponse | None, final: bool) -> None:
        # Not with the lock held: the client may keep it waiting for long.
        resumed = self.resumed
        if resumed is not None and not self.is_cancelled():
            resumed.wait()
        with self._lock:
            if self._unsent is None:
                super()._send(response, final)
            elif len(self._unsent) < _MOST_UNSENT:
                self._unsent.append((response, final))
            else:
                raise TritonModelException(
                    f"Unable to send response. {_MOST_UNSENT} responses wait for the next "
                    "iteration of the request."
                )


class Iterations:
    """The requests of one model that wait for their next iteration."""

    def __init__(self) -> None:
        # By number. Those whose senders the model does not keep are forgotten.
        self._suspended: weakref.WeakValueDictionary[str, IterativeState]
        self._suspended = weakref.WeakValueDictionary()

    def begin_request(
        self, execution: BatchExecution, request: InferenceRequest, iteration: str
    ) -> None:
        """Give a request its state, which it has from earlier iterations if the model kept it.

        iteration: the request's number, a dot, and the iteration's.
        """
        number, _, index = iteration.partition(".")
        member = request._member
        state = self._suspended.pop(number, None)
        if state is None or index == "0":
            state = IterativeState(execution, member, execution.requested_outputs[member], number)
        execution.add_state(request, state)
        if state._batch is not execution or state.rescheduled:
            state.resume(execution, member)

    def end_iteration(self, requests: Iterable[InferenceRequest]) -> list[wire.Reply]:
        """The model has executed these requests: replies for those that it wants again."""
        replies = []
        for request in requests:
            state = request._state
            if not isinstance(state, RequestState) or not state.rescheduled or state.responded:
                continue
            if isinstance(state, IterativeState):
                state.suspend()
                self._suspended[state.number] = state
            else:
                # A null request, or a warm-up's: it does not come again.
                state.responded = True
            replies.append(wire.Reply(request._member, wire.RESCHEDULED, b"", ()))
        return replies
