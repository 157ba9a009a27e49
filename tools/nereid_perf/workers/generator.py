"""Generators, which send one worker's requests; they know no processes, windows or protocols."""

# layout: compiled

from __future__ import annotations

import asyncio
import random
from collections import deque
from dataclasses import dataclass
from time import monotonic_ns
from typing import TYPE_CHECKING, Final

from nereid_perf.precise_timer import PreciseTimer
from nereid_perf.request import Request
from nereid_perf.wire.client import PendingRequest
from nereid_perf.workers.rows import CANCELLED, OK, RowWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nereid_perf.load.arrivals import Times
    from nereid_perf.load.concurrency import Constant, Periodic
    from nereid_perf.request import RequestSource, TimedSource
    from nereid_perf.wire.client import WireClient

_DELAYED_NS: Final = 1_000_000
_CANCEL_FIRST_S: Final = 0.001
# Stands in the row of a due request that the source never made.
_NO_REQUEST: Final = Request(b"")
# Errors of requests that failed because of overload.
UNFINISHED: Final = "no response before the end"
OVERFLOW: Final = "not sent: too many requests waited"


@dataclass(frozen=True, kw_only=True)
class GeneratorOptions:
    """Limits of a generator; most_requests `None` means no limit.

    In an open loop, requests over most_in_flight or of a busy sequence wait, at most most_waiting.
    """

    cancel_percent: float = 0.0
    checks_responses: bool = False
    seed: int = 0
    most_requests: int | None = None
    most_in_flight: int = 1024
    most_waiting: int = 1 << 17


class Generator:
    """Sends the requests of one level of load; subclasses decide when a request is due.

    delayed: late requests that waited neither for the server nor for their sequence. idle: set when
    all requests, including the last ones of open sequences, have ended.
    """

    def __init__(
        self,
        client: WireClient,
        source: RequestSource,
        rows: RowWriter,
        options: GeneratorOptions,
    ) -> None:
        self.rows = rows
        self.delayed = 0
        self.in_flight = 0
        self.idle = asyncio.Event()
        self._client = client
        self._source = source
        self._checks = options.checks_responses
        most_requests = options.most_requests
        self._left = 1 << 62 if most_requests is None else most_requests
        self._most_in_flight = options.most_in_flight
        self._sending = False
        self._draining = False
        self._cancel_share = options.cancel_percent / 100
        self._random = random.Random(options.seed)  # noqa: S311 (a schedule, no secret)
        self._pending: set[PendingRequest] = set()
        # Mean service time in seconds. Cancellations come after half of it.
        self._service_s = 0.0

    def start(self, start_ns: int) -> None:
        """Start sending. The schedule begins at start_ns on the monotonic clock."""
        raise NotImplementedError

    def on_end(self, pending: PendingRequest, error: str) -> None:
        """Count a request that has ended. The client calls this."""
        if not error and self._checks and pending.request.data >= 0:
            message, json_bytes = pending.message, pending.json_bytes
            mismatch = self._source.find_mismatch(pending.request, message, json_bytes)
            error = mismatch and f"wrong response: {mismatch}"
        self._finish(pending, self.rows.outcome_of(error) if error else OK)

    def stop(self) -> None:
        """Stop sending, except for the last requests of open sequences."""
        if not self._draining:
            self._sending = False
            self._draining = True
            self._source.set_draining(draining=True)
            self._drain()
            self._client.flush()

    def abandon(self) -> None:
        """Count requests that are still in flight as failed, and send nothing any more."""
        self._sending = self._draining = False
        now = monotonic_ns()
        for pending in tuple(self._pending):
            self._client.cancel(pending)
            pending.last_ns = now
            self._finish(pending, self.rows.outcome_of(UNFINISHED))

    def _send(self, request: Request, intended_ns: int) -> None:
        self.in_flight += 1
        self._left -= 1
        pending = self._client.send(request, intended_ns)
        self._pending.add(pending)
        if self._cancel_share and self._random.random() < self._cancel_share:
            self._cancel_later(pending)

    def _on_slot(self) -> None:
        """React to the end of a request, which leaves room for another."""
        raise NotImplementedError

    def _drain(self) -> None:
        while (request := self._source.next_request()) is not None:
            self._send(request, 0)
        if not self.in_flight:
            self.idle.set()

    def _cancel_later(self, pending: PendingRequest) -> None:
        delay_s = self._service_s / 2 or _CANCEL_FIRST_S
        asyncio.get_running_loop().call_later(delay_s, self._cancel, pending)

    def _cancel(self, pending: PendingRequest) -> None:
        if pending not in self._pending:
            return
        if not pending.sent_ns:
            self._cancel_later(pending)
        else:
            self._client.cancel(pending)
            pending.last_ns = monotonic_ns()
            self._finish(pending, CANCELLED)
            self._client.flush()

    def _finish(self, pending: PendingRequest, outcome: int) -> None:
        if pending not in self._pending:
            # The request was abandoned.
            return
        self._pending.remove(pending)
        self.in_flight -= 1
        if self._cancel_share and outcome == OK:
            service_s = (pending.last_ns - pending.sent_ns) / 1e9
            self._service_s += (service_s - self._service_s) / 16
        self.rows.add(pending, outcome)
        self._source.on_end(pending.request)
        if self._sending:
            self._on_slot()
        elif self._draining:
            self._drain()


class ClosedLoop(Generator):
    """A closed loop: another request is sent as soon as one ends."""

    def __init__(
        self,
        client: WireClient,
        source: RequestSource,
        rows: RowWriter,
        options: GeneratorOptions,
        concurrency: Constant | Periodic,
    ) -> None:
        super().__init__(client, source, rows, options)
        self._concurrency = concurrency

    def start(self, start_ns: int) -> None:
        """Send the first requests at start_ns."""
        delay_s = (start_ns - monotonic_ns()) / 1e9
        self._sending = True
        asyncio.get_running_loop().call_later(max(0.0, delay_s), self._begin)

    def _begin(self) -> None:
        if self._sending:
            self._fill()
            self._client.flush()

    def _on_slot(self) -> None:
        self._concurrency.on_end()
        self._fill()

    def _fill(self) -> None:
        allowed = self._concurrency.allowed
        while self.in_flight < allowed:
            if self._left <= 0:
                self.stop()
                return
            request = self._source.next_request()
            if request is None:
                return
            self._send(request, 0)


class TimedGenerator(Generator):
    """Base class of generators that send requests at set times, counted from start_ns."""

    _start_ns = 0
    _timer: PreciseTimer | None = None

    def start(self, start_ns: int) -> None:
        """Start the timer for the first request."""
        self._start_ns = start_ns
        self._sending = True
        self._timer = PreciseTimer(self._on_time)
        self._timer.set_ns(start_ns)

    def stop(self) -> None:
        """Stop sending, except for the last requests of open sequences."""
        if self._timer is not None:
            self._timer.close()
            self._timer = None
        super().stop()

    def _on_time(self) -> None:
        """Send the requests that are due, and set the timer for the next request."""
        raise NotImplementedError


class OpenLoop(TimedGenerator):
    """An open loop; a request that must wait keeps its scheduled time as its intended time."""

    def __init__(
        self,
        client: WireClient,
        source: RequestSource,
        rows: RowWriter,
        options: GeneratorOptions,
        arrivals: Iterator[Times],
    ) -> None:
        super().__init__(client, source, rows, options)
        self._arrivals = arrivals
        self._most_waiting = options.most_waiting
        self._due: deque[int] = deque()
        self._waiting: deque[int] = deque()

    def stop(self) -> None:
        """Stop sending, except for the last requests of open sequences."""
        # Requests that were due and not sent count as failures.
        now_ns = monotonic_ns()
        while self._due and self._due[0] <= now_ns:
            self.delayed += 1
            self._hold(self._due.popleft(), now_ns)
        while self._waiting:
            self._drop(self._waiting.popleft(), now_ns, UNFINISHED)
        super().stop()

    def _on_time(self) -> None:
        due = self._due
        while self._sending:
            if not due:
                due.extend((next(self._arrivals) + self._start_ns).tolist())
                # A block of the schedule may have no requests for this worker.
                continue
            now_ns = monotonic_ns()
            if due[0] > now_ns:
                break
            self._on_due(due.popleft(), now_ns)
        self._client.flush()
        if self._timer is not None:
            self._timer.set_ns(due[0])

    def _on_due(self, intended_ns: int, now_ns: int) -> None:
        if self.in_flight < self._most_in_flight and not self._waiting:
            request = self._source.next_request()
            if request is not None:
                if now_ns - intended_ns > _DELAYED_NS:
                    self.delayed += 1
                self._send(request, intended_ns)
                self._end_if_all_sent()
                return
        self._hold(intended_ns, now_ns)

    def _hold(self, intended_ns: int, now_ns: int) -> None:
        """Make a request wait; if too many requests wait already, count it as failed."""
        if len(self._waiting) < self._most_waiting:
            self._waiting.append(intended_ns)
        else:
            self._drop(intended_ns, now_ns, OVERFLOW)

    def _on_slot(self) -> None:
        waiting = self._waiting
        while waiting and self.in_flight < self._most_in_flight:
            request = self._source.next_request()
            if request is None:
                return
            self._send(request, waiting.popleft())
            self._end_if_all_sent()

    def _end_if_all_sent(self) -> None:
        if self._left <= 0:
            # The maximum number of requests is sent.
            self._due.clear()
            self._waiting.clear()
            self.stop()

    def _drop(self, intended_ns: int, now_ns: int, why: str) -> None:
        pending = PendingRequest(_NO_REQUEST, intended_ns)
        pending.last_ns = now_ns
        self.rows.add(pending, self.rows.outcome_of(why))


class TraceLoop(TimedGenerator):
    """Replays a trace: sends each request at its own time, until the source ends."""

    def __init__(
        self,
        client: WireClient,
        source: TimedSource,
        rows: RowWriter,
        options: GeneratorOptions,
        speed: float,
    ) -> None:
        """Prepare a replay, faster than the trace by the factor `speed`."""
        super().__init__(client, source, rows, options)
        self._timed = source
        self._speed = speed
        # True if the next request has waited because of most_in_flight.
        self._held = False

    def _on_time(self) -> None:
        self._send_due()
        self._client.flush()

    def _on_slot(self) -> None:
        self._send_due(is_slot=True)

    def _send_due(self, *, is_slot: bool = False) -> None:
        """Send the due requests. is_slot: a request has ended, so its sequence may go on."""
        while self._sending and self.in_flight < self._most_in_flight:
            now_ns = monotonic_ns()
            request = self._timed.due_request(round((now_ns - self._start_ns) * self._speed))
            if request is None:
                self._held = False
                self._wait()
                return
            due_ns = self._start_ns + round(request.at_ns / self._speed)
            has_waited = self._held or (is_slot and request.sequence >= 0)
            if now_ns - due_ns > _DELAYED_NS and not has_waited:
                self.delayed += 1
            self._held = False
            self._send(request, due_ns)
            if self._left <= 0:
                self.stop()
        self._held = True

    def _wait(self) -> None:
        """Set the timer for the next request; after the last request, stop when all have ended."""
        next_ns = self._timed.next_due_ns()
        if next_ns is not None:
            assert self._timer is not None, "it sends"
            self._timer.set_ns(self._start_ns + round(next_ns / self._speed))
        elif not self.in_flight:
            self.stop()
