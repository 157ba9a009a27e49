"""Decoder processes of a gateway. Jobs wait for a process in fair queues.

One more process than the limit is reserved for short jobs. A process is killed if its job takes too
long, or if the job's client has disconnected and the job does not end soon. When a process ends,
its job fails. The job is not run again, because it may be the cause.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from nereid.core.errors import (
    INTERNAL_MESSAGE,
    STOPPING_MESSAGE,
    Internal,
    InvalidArgument,
    Unavailable,
    error_from_code,
)
from nereid.core.retry_after import DEFAULT_MS
from nereid.rpc.net.limits.fair_queue import FairQueue, QueueFullError
from nereid_gateway.plane.decoding import outcomes
from nereid_gateway.plane.decoding.limits import LONG_JOB_BYTES
from nereid_gateway.plane.decoding.process import DecoderProcess, Job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.errors import NereidError
    from nereid_gateway.core.tensors.jobs import Blob, JobFunction, RunJob
    from nereid_gateway.plane.decoding.outcomes import Outcome

_log = logging.getLogger(__name__)

_MAX_WAITING: Final = 4096
_IDLE_S: Final = 60.0
# If the client has disconnected, a job's process is killed this many seconds after the job's start.
# A new process takes about as long to start.
_ABANDONED_S: Final = 0.5
# Short jobs may use 1/_SHORT_SHARE of max_waiting_bytes.
_SHORT_SHARE: Final = 8
# A process holds a job's data in several forms, so JSON text may take only this share of its
# memory.
_TEXT_SHARE: Final = 8
# Minimum time between log entries about failed processes.
_LOG_INTERVAL_S: Final = 10.0

# A value and blobs.
Returned = tuple[Any, Any]


@dataclass(frozen=True)
class PoolLimits:
    """Limits of the decoder processes. Without processes, all jobs run on the event loop.

    A job with more than long_bytes is long. memory_bytes holds for one process, max_waiting_bytes
    for all waiting jobs. After abandoned_s, a job is killed if its client has disconnected.
    """

    processes: int = 2
    long_bytes: int = LONG_JOB_BYTES
    memory_bytes: int = 2 << 30
    job_timeout_s: float = 30.0
    max_waiting_bytes: int = 512 << 20
    idle_s: float = _IDLE_S
    abandoned_s: float = _ABANDONED_S


class _WaitingJob:
    __slots__ = ("done", "job")

    def __init__(self, job: Job, done: asyncio.Future[Returned]) -> None:
        self.job = job
        self.done = done


class DecoderPool:
    """Runs jobs in decoder processes. The pool belongs to one event loop."""

    def __init__(self, limits: PoolLimits) -> None:
        self._limits = limits
        short_bytes = limits.max_waiting_bytes // _SHORT_SHARE
        self._short, self._long = (
            FairQueue[_WaitingJob]("requests to be decoded", _MAX_WAITING, max_bytes)
            for max_bytes in (short_bytes, limits.max_waiting_bytes - short_bytes)
        )
        # The first slot is reserved for short jobs.
        self._slots = [_Slot(self, limits) for _ in range(limits.processes + 1)]
        self._closed = False
        self._next_log_s = 0.0

    @property
    def max_text_bytes(self) -> int:
        """Maximum size of the JSON that one job may write."""
        return self._limits.memory_bytes // _TEXT_SHARE

    @property
    def pids(self) -> list[int]:
        """Process ids of the running processes."""
        return [pid for slot in self._slots if (pid := slot.process.pid) is not None]

    async def run(
        self, peer: str, function: JobFunction, *arguments: Any, blobs: Sequence[Blob] = ()
    ) -> Returned:
        """Run function(blobs, *arguments) in a decoder process and return its result.

        function: defined at a module's top level. A cancelled job that waits never begins; a
        running one is killed after `abandoned_s`. Raises NereidError if the function did, too many
        jobs are waiting, or the process failed.
        """
        if not self._limits.processes:
            return function([bytes(blob) for blob in blobs], *arguments)
        if self._closed:
            raise _stopping()
        done: asyncio.Future[Returned] = asyncio.get_running_loop().create_future()
        size_bytes = sum(map(len, blobs))
        waiting = _WaitingJob(Job(function, arguments, blobs), done)
        queue = self._long if size_bytes > self._limits.long_bytes else self._short
        try:
            ticket = queue.add(peer, size_bytes, waiting)
        except QueueFullError as error:
            raise Unavailable(str(error), retry_after_ms=DEFAULT_MS) from error
        self.start_jobs()
        try:
            return await done
        finally:
            queue.discard(ticket)
            # An error's traceback keeps this frame alive. The frame must not keep the blobs'
            # segments or the future with the error.
            del waiting, ticket, blobs, done

    def for_peer(self, peer: str) -> RunJob:
        """Return `run` bound to this peer, for callers that run jobs of one client."""
        return partial(self.run, peer)

    async def drain(self, timeout_s: float) -> None:
        """Wait until no job is running or waiting, or until the time is over."""
        until = asyncio.get_running_loop().time() + timeout_s
        while running := [
            done for slot in self._slots if (done := slot.running) and not done.done()
        ]:
            left_s = until - asyncio.get_running_loop().time()
            if left_s <= 0:
                return
            await asyncio.wait(running, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            # One turn of the loop lets the free processes take the next jobs.
            await asyncio.sleep(0)

    def close(self) -> None:
        """End the processes. Waiting and running jobs fail."""
        self._closed = True
        for queue in (self._short, self._long):
            while (waiting := queue.take()) is not None:
                if not waiting.done.done():
                    waiting.done.set_exception(_stopping())
        for slot in self._slots:
            slot.close()

    def start_jobs(self) -> None:
        """Give waiting jobs to idle processes, first to those that have been started."""
        reserved, *others = self._slots
        if reserved.running is None and (waiting := self._short.take()) is not None:
            reserved.run_job(waiting)
        free = [slot for slot in others if slot.running is None]
        free.sort(key=lambda slot: slot.process.pid is None)
        for slot in free:
            if (waiting := self._long.take()) is not None:
                # The reserved process starts now, so that short jobs need not wait for its start.
                reserved.start_process()
            else:
                waiting = self._short.take()
            if waiting is None:
                return
            slot.run_job(waiting)

    def log_failure(self, what: str, details: str) -> None:
        """Log the failure of a process, at most once per interval."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._next_log_s:
            self._next_log_s = now_s + _LOG_INTERVAL_S
            _log.warning("decoder process %s: %s", what, details)


class _Slot:
    def __init__(self, pool: DecoderPool, limits: PoolLimits) -> None:
        self._pool = pool
        self._limits = limits
        self.process = DecoderProcess(limits.memory_bytes)
        self.running: asyncio.Future[Returned] | None = None
        self._begun_s = 0.0
        self._timed_out = self._killed = False
        self._timer: asyncio.TimerHandle | None = None

    def start_process(self) -> None:
        if self.running is None:
            self.process.start()
            self._set_timer(self._limits.idle_s, self.process.end)

    def run_job(self, waiting: _WaitingJob) -> None:
        loop = asyncio.get_running_loop()
        self._begun_s = loop.time()
        self._set_timer(self._limits.job_timeout_s, self._on_timeout)
        self._timed_out = self._killed = False
        self.running = waiting.done
        waiting.done.add_done_callback(self._on_done)

        def on_outcome(outcome: Outcome, blobs: list[bytes]) -> None:
            # call_soon_threadsafe raises RuntimeError if the loop is closed.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._on_outcome, outcome, blobs)

        self.process.run_job(waiting.job, on_outcome)

    def close(self) -> None:
        self.process.kill()
        self.process.end()
        if self._timer is not None:
            self._timer.cancel()

    def _on_done(self, done: asyncio.Future[Returned]) -> None:
        if self.running is done and done.cancelled():
            left_s = self._begun_s + self._limits.abandoned_s - done.get_loop().time()
            self._set_timer(max(left_s, 0.0), self._kill_process)

    def _on_timeout(self) -> None:
        self._timed_out = True
        self._kill_process()

    def _kill_process(self) -> None:
        self._killed = True
        self.process.kill()
        # Repeat the kill, in case the process is just being started.
        self._set_timer(1.0, self._kill_process)

    def _on_outcome(self, outcome: Outcome, blobs: list[bytes]) -> None:
        done, self.running = self.running, None
        if self._killed:
            # The job may have ended just before, and the next one needs a process.
            self.process.end()
        self._set_timer(self._limits.idle_s, self.process.end)
        assert done is not None, "an outcome without a job"
        if not done.done():
            if isinstance(outcome, outcomes.Result):
                done.set_result((outcome.value, blobs))
            else:
                done.set_exception(self._error_of(outcome))
        self._pool.start_jobs()

    def _error_of(self, outcome: Outcome) -> NereidError:
        if isinstance(outcome, outcomes.Refused):
            return error_from_code(outcome.code, outcome.message, accepted=outcome.accepted)
        if isinstance(outcome, outcomes.OutOfMemory):
            limit = self._limits.memory_bytes
            return InvalidArgument(
                f"the request takes more memory to decode than {limit} bytes. Use"
                " --decoder-memory-bytes to increase the limit."
            )
        if isinstance(outcome, outcomes.Crashed):
            self._pool.log_failure("crashed", outcome.reason)
            limit = self._limits.memory_bytes
            return Internal(
                f"the process that decoded the request has crashed ({outcome.reason}), as it may"
                f" where that takes more than {limit} bytes of memory. Send it in parts, or use"
                " --decoder-memory-bytes to increase the limit."
            )
        if isinstance(outcome, outcomes.Failed):
            self._pool.log_failure("failed", outcome.details)
            return Internal(INTERNAL_MESSAGE)
        if self._timed_out:
            limit_s = self._limits.job_timeout_s
            self._pool.log_failure("killed", f"a request took more than {limit_s:g} s to decode")
            return Unavailable(
                f"the request took more than {limit_s:g} s to decode. Use --decoder-timeout-secs to"
                " increase the limit."
            )
        assert isinstance(outcome, outcomes.Lost), "an outcome of another kind"
        self._pool.log_failure("was killed while it decoded a request", outcome.reason)
        return Unavailable("the process that decoded the request has ended; it may be sent again")

    def _set_timer(self, delay_s: float, callback: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_s, callback)


def _stopping() -> Unavailable:
    return Unavailable(STOPPING_MESSAGE, retry_after_ms=DEFAULT_MS)
