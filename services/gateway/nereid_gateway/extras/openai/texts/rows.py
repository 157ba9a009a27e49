"""Rows: the inference requests that a call consists of, of which a bounded number is in flight."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from nereid.core.errors import (
    INTERNAL_MESSAGE,
    Internal,
    NereidError,
    Unavailable,
    error_from_code,
)
from nereid.core.wire.messages import payload_bytes
from nereid_gateway.core.client_request import ClientRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.core.wire.messages import ErrorStatus, InferResponse, Parameter, Payload
    from nereid_gateway.core.request_handle import OnResponse, RequestHandle
    from nereid_gateway.extras.openai.work_pool import WorkPool
    from nereid_gateway.fronts.http.submission import InferSubmission
    from nereid_gateway.server.call import HttpCall

Output = TypeVar("Output")

_log = logging.getLogger(__name__)

# Rows of a call.
MAX_IN_FLIGHT: Final = 256
# Outputs of up to this size are read on the event loop, which takes at most about 100 us.
_LOOP_BYTES: Final = 512 << 10


def error_of(status: ErrorStatus) -> NereidError:
    """Return the error in a response."""
    return error_from_code(
        status.code,
        status.message,
        accepted=status.accepted,
        retry_after_ms=status.retry_after_ms,
    )


class Row(NamedTuple):
    """A request of one row: its head, and one raw tensor for each input."""

    head: bytes
    payloads: list[Payload]
    # 0 if the number is unknown, as the model takes texts and no tokenizer is at hand.
    tokens: int
    # Rows of larger size are sent first.
    size: int
    # See InferRequest.
    text_digest: bytes
    parameters: dict[str, Parameter] | None = None

    def request(self, priority: int) -> ClientRequest:
        """Return a new request of the row."""
        request = ClientRequest(
            0, self.head, list(self.payloads), priority=priority, text_digest=self.text_digest
        )
        request.parameters = self.parameters
        return request


class RowSubmission:
    """Submits the rows of calls."""

    def __init__(
        self, submission: InferSubmission, pool: WorkPool, max_in_flight: int = MAX_IN_FLIGHT
    ) -> None:
        self._submission = submission
        self._pool = pool
        self._max_in_flight = max_in_flight

    async def infer(  # noqa: PLR0913
        self,
        call: HttpCall,
        rows: Sequence[Row],
        read: Callable[[InferResponse, Row], Output],
        *,
        priority: int = 0,
        tokenized_ns: tuple[int, int] = (0, 0),
        max_in_flight: int = MAX_IN_FLIGHT,
    ) -> list[Output]:
        """Return what `read` makes of each row's response, in the order of the rows.

        The longest rows are sent first. The first error cancels all other rows, and is raised; so
        does the cancellation of this coroutine. While the call has rows in a full queue, the others
        wait. A thread runs `read` for large outputs.
        """
        submit_row = partial(self._submission.submit_row, call, tokenized_ns)
        flight = _Flight(submit_row, self._pool, call, rows, read, priority)
        try:
            return await flight.run(min(max_in_flight, self._max_in_flight))
        finally:
            flight.cancel()

    def end_sequence(self, call: HttpCall, row: Row) -> None:
        """End the sequence to which a row belongs, at once and also if the client has left.

        A cancelled request ends its sequence. If an instance executes it first, its END does.
        """
        request = row.request(0)
        self._submission.submit_row(call, (0, 0), request, _ignore).cancel()


def _ignore(response: InferResponse) -> None:
    """Ignore the response of a request that was only to end its sequence."""


class _Flight(Generic[Output]):
    def __init__(  # noqa: PLR0913, PLR0917 - called once
        self,
        submit_row: Callable[[ClientRequest, OnResponse], RequestHandle],
        pool: WorkPool,
        call: HttpCall,
        rows: Sequence[Row],
        read: Callable[[InferResponse, Row], Output],
        priority: int,
    ) -> None:
        self._submit_row = submit_row
        self._pool = pool
        self._call = call
        self._rows = rows
        self._read = read
        self._priority = priority
        self._waiting = deque(sorted(range(len(rows)), key=lambda index: -rows[index].size))
        self._handles: dict[int, RequestHandle] = {}
        self._in_flight = 0
        self._max_in_flight = 0
        self._sending = False
        self._outputs: dict[int, Output] = {}
        self._reads: set[asyncio.Task[None]] = set()
        self._error: NereidError | None = None
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, max_in_flight: int) -> list[Output]:
        self._max_in_flight = max_in_flight
        if self._rows:
            self._send()
            await self._done
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                # An error refers to this frame: rows would stay until cycles are collected.
                del error
        return [self._outputs[index] for index in range(len(self._rows))]

    def cancel(self) -> None:
        """Cancel all rows that have no response yet."""
        self._waiting.clear()
        handles, self._handles = self._handles, {}
        for handle in handles.values():
            handle.cancel()
        for task in self._reads:
            task.cancel()

    def _send(self) -> None:
        if self._sending:
            # A row was refused at once; the loop below goes on.
            return
        self._sending = True
        while self._waiting and self._in_flight < self._max_in_flight and not self._done.done():
            index = self._waiting.popleft()
            row = self._rows[index]
            request = row.request(self._priority)
            self._in_flight += 1
            on_response = partial(self._on_response, index)
            handle = self._submit_row(request, on_response)
            if not (index in self._outputs or self._done.done()):
                self._handles[index] = handle
        self._sending = False

    def _on_response(self, index: int, response: InferResponse) -> None:
        self._handles.pop(index, None)
        if self._done.done():
            return
        error = response.error
        if error is not None:
            self._in_flight -= 1
            if error.code == Unavailable.code and not error.accepted and self._in_flight:
                # The queue is full, also with rows of this call. It is sent again after them.
                self._max_in_flight = self._in_flight
                self._waiting.appendleft(index)
                return
            self._fail(error_of(error))
            return
        if sum(map(payload_bytes, response.payloads)) > _LOOP_BYTES:
            task = asyncio.get_running_loop().create_task(self._read_large(index, response))
            self._reads.add(task)
            task.add_done_callback(self._reads.discard)
            return
        try:
            self._finish(index, self._read(response, self._rows[index]))
        except NereidError as problem:
            self._fail(problem)

    async def _read_large(self, index: int, response: InferResponse) -> None:
        size = sum(map(payload_bytes, response.payloads))
        try:
            output = await self._pool.run(self._call, size, self._read, response, self._rows[index])
        except NereidError as problem:
            self._fail(problem)
        except Exception:
            _log.exception("a row's output could not be read")
            self._fail(Internal(INTERNAL_MESSAGE))
        else:
            self._finish(index, output)

    def _finish(self, index: int, output: Output) -> None:
        self._outputs[index] = output
        self._in_flight -= 1
        if len(self._outputs) == len(self._rows):
            if not self._done.done():
                self._done.set_result(None)
        else:
            self._send()

    def _fail(self, error: NereidError) -> None:
        if not self._done.done():
            self._error = error
            self._done.set_result(None)
