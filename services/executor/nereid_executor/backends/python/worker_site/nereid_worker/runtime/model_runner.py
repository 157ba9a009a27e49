"""Calls a worker's model: executes requests and returns replies."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from typing import TYPE_CHECKING, Any

from ..pb_utils.logger import Logger
from ..pb_utils.responses import FINAL, InferenceResponse
from ..values.errors import TritonError, TritonModelException
from .error_text import ModelMisuse, error_text, traceback_text
from .execution import BatchExecution, check_response, failure, reply_of
from .executions import current_batch
from .iterations import Iterations
from .received_requests import RequestSpecEntry, apply_metadata, make_request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..pb_utils.requests import InferenceRequest
    from ..protocol import wire


class ModelRunner:
    """Runs an initialised model. Only the main thread executes batches."""

    def __init__(self, model: Any, name: str, *, decoupled: bool, iterative: bool = False) -> None:
        self._model, self._name = model, name
        self._execute = model.execute
        self.decoupled = decoupled
        self.iterative = iterative
        self._iterations = Iterations()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def has_is_ready(self) -> bool:
        """True if the model has a method is_ready()."""
        return callable(getattr(self._model, "is_ready", None))

    def is_ready(self) -> bool:
        """Ask the model whether it is ready; raise TypeError if its reply is no bool."""
        returned = self._model.is_ready()
        if inspect.isawaitable(returned):
            returned = self._await_result(returned)
        if not isinstance(returned, bool):
            raise TypeError(f"is_ready returned {type(returned)} instead of a bool")
        return returned

    def _await_result(self, awaitable: Any) -> Any:
        if self._loop is None:
            return asyncio.run(_awaiting(awaitable))
        return asyncio.run_coroutine_threadsafe(_awaiting(awaitable), self._loop).result()

    def finalize(self) -> None:
        """Finalise the model, if it has such a method."""
        if hasattr(self._model, "finalize"):
            self._model.finalize()

    def add_request(
        self,
        execution: BatchExecution,
        member: int,
        spec: RequestSpecEntry,
        tensors: Sequence[Any],
        meta: bytes,
    ) -> None:
        """Add the next member of a batch: a request, or an error reply if its data is gone."""
        execution.requested_outputs.append(spec.requested_outputs)
        try:
            request = make_request(spec, tensors, execution, member)
        except TritonModelException as error:
            unavailable = TritonError(str(error), TritonError.UNAVAILABLE)
            execution.rejected.append(failure(member, unavailable))
            return
        iteration = apply_metadata(request, meta) if meta else ""
        if iteration and self.iterative:
            self._iterations.begin_request(execution, request, iteration)
        if self.decoupled:
            # The request is complete when the model no longer holds its state.
            execution.state_of(request)
        execution.requests.append(request)

    def execute(self, execution: BatchExecution) -> list[wire.Reply]:
        """Execute a batch and return replies; senders respond for members that have no reply."""
        # After execute(), only the model may hold the requests.
        requests, execution.requests = execution.requests, []
        execution.members = [request._member for request in requests]
        if not requests:
            return execution.rejected
        try:
            returned = self._execute(requests)
            if type(returned) is not list and inspect.iscoroutine(returned):
                returned = self._run_coroutine(returned, requests)
            replies = self._replies(execution, returned)
            if self.iterative:
                replies += self._iterations.end_iteration(requests)
        except BaseException as error:
            text = error_text(error)
            Logger.log_error(self._error(text).message())
            replies = self.failures(execution, text)
        return execution.rejected + replies if execution.rejected else replies

    def _run_coroutine(self, coroutine: Any, requests: list[InferenceRequest]) -> Any:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="asyncio", daemon=True).start()
        if self.decoupled:
            # The next batch may come while the coroutine still runs.
            coroutine = self._watch_decoupled(coroutine, requests)
        elif requests[0]._execution is not None:
            current_batch.set(requests[0]._execution.number)
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return None if self.decoupled else future.result()

    async def _watch_decoupled(self, coroutine: Any, requests: list[InferenceRequest]) -> None:
        try:
            self._check_none(await coroutine)
            self._send_rescheduled(requests)
        except BaseException as error:
            Logger.log_error(traceback_text(error))
            failed = InferenceResponse(error=self._error(error_text(error)))
            for request in requests:
                with contextlib.suppress(TritonModelException):
                    request.get_response_sender().send(failed, FINAL)

    def _send_rescheduled(self, requests: list[InferenceRequest]) -> None:
        execution = requests[0]._execution
        if self.iterative and isinstance(execution, BatchExecution):
            replies = self._iterations.end_iteration(requests)
            if replies:
                execution.send_replies(replies)

    def _replies(self, execution: BatchExecution, returned: Any) -> list[wire.Reply]:
        if self.decoupled:
            self._check_none(returned)
            return []
        members, held = execution.members, execution.held
        requested = execution.requested_outputs
        if returned is None and any(state.has_sender for state in held.values()):
            returned = [None] * len(members)
        if not isinstance(returned, list):
            raise ModelMisuse(
                f"Expected a list in the execute return, found type '{type(returned)}'."
            )
        if len(returned) != len(members):
            raise ModelMisuse(
                "Number of InferenceResponse objects do not match the number of InferenceRequest "
                f"objects. InferenceRequest(s) size is:{len(members)}, and InferenceResponse(s) "
                f"size is:{len(returned)}\n"
            )
        replies = []
        for member, response in zip(members, returned):  # noqa: B905 - Python 3.9
            if type(response) is not InferenceResponse or held:
                check_response(response, held.get(member))
                if response is None:
                    continue
            buffer = execution.output_buffers.get(member) if execution.output_buffers else None
            replies.append(reply_of(member, requested[member], response, buffer))
        return replies

    def _check_none(self, returned: Any) -> None:
        if returned is not None:
            raise ModelMisuse(
                f"Python model '{self._name}' is using the decoupled mode and the execute function "
                "must return None."
            )

    def _error(self, text: str) -> TritonError:
        message = f"Failed to process the request(s) for model '{self._name}', message: {text}"
        return TritonError(message)

    def failure(self, member: int, text: str) -> wire.Reply:
        """Return the reply to a member whose execution failed."""
        return failure(member, self._error(text))

    def failures(
        self, execution: BatchExecution, text: str, *, again: bool = False
    ) -> list[wire.Reply]:
        """Return error replies to a failed batch; with `again`, also to members with a response."""
        responded = {member for member, state in execution.held.items() if state.responded}
        return [
            self.failure(member, text)
            for member in execution.members
            if again or member not in responded
        ]


async def _awaiting(awaitable: Any) -> Any:
    return await awaitable
