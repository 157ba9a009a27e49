"""Requests of a call that generates, from their submission to the end of each text."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from nereid.core.errors import INTERNAL_MESSAGE, Internal, NereidError
from nereid.rpc.net.limits.budget import OverBudgetError
from nereid_gateway.core.retry_hints import over_budget
from nereid_gateway.extras.openai.texts.rows import error_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.wire.messages import InferResponse
    from nereid_gateway.core.client_request import ClientRequest
    from nereid_gateway.core.request_handle import RequestHandle
    from nereid_gateway.extras.openai.generation.choices import Choice
    from nereid_gateway.extras.openai.generation.deltas import DeltaReader
    from nereid_gateway.fronts.http.submission import InferSubmission
    from nereid_gateway.server.call import HttpCall

_log = logging.getLogger(__name__)


class ChoiceStreams:
    """The requests of one call, one for each text. They stop as soon as nobody needs their text."""

    def __init__(self, submission: InferSubmission, call: HttpCall) -> None:
        self._submit_row = submission.submit_row
        self._call = call
        self._handles: dict[int, RequestHandle] = {}
        self._unfinished = 0
        self._error: NereidError | None = None
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, texts: Sequence[tuple[ClientRequest, Choice, DeltaReader]]) -> None:
        """Return when all texts have ended; raise the first error, which cancels the others."""
        self._unfinished = len(texts)
        call = self._call
        call.on_flow_control = self._set_flow
        try:
            for request, choice, reader in texts:
                if self._done.done():
                    break
                on_response = partial(self._on_response, choice, reader)
                handle = self._submit_row(call, (0, 0), request, on_response)
                if choice.finish_reason or self._done.done():
                    handle.cancel()
                else:
                    self._handles[choice.index] = handle
            await self._done
        finally:
            call.on_flow_control = None
            for handle in self._handles.values():
                handle.cancel()
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                # An error refers to this frame: texts would stay until cycles are collected.
                del error

    def _set_flow(self, paused: bool) -> None:
        for handle in self._handles.values():
            handle.set_flow(paused=paused)

    def _on_response(self, choice: Choice, reader: DeltaReader, response: InferResponse) -> None:
        if choice.finish_reason or self._done.done():
            return
        try:
            error = response.error
            if error is not None:
                self._fail(error_of(error))
                return
            if response.head:
                delta = reader.read(response)
                # The text is kept until the call ends.
                self._call.hold(len(delta.text))
                choice.add(delta)
            if not response.more:
                choice.end()
        except NereidError as problem:
            self._fail(problem)
        except OverBudgetError as problem:
            self._fail(over_budget(problem))
        except Exception:
            _log.exception("a response could not be read: target=%r", self._call.target)
            self._fail(Internal(INTERNAL_MESSAGE))
        if choice.finish_reason:
            self._on_finished(choice, is_running=response.more)

    def _on_finished(self, choice: Choice, *, is_running: bool) -> None:
        handle = self._handles.pop(choice.index, None)
        if handle is not None and is_running:
            handle.cancel()
        self._unfinished -= 1
        if not self._unfinished and not self._done.done():
            self._done.set_result(None)

    def _fail(self, error: NereidError) -> None:
        if not self._done.done():
            self._error = error
            self._done.set_result(None)
