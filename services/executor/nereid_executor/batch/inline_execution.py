"""Short batches that the event loop itself executes, in an executor in the scheduler's process.

Waking the instance's thread and the loop takes longer than a small model. So the loop executes the
batch while the thread waits, unless earlier measurements say that this delays other work.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nereid_executor.batch.batch_runner import BatchRunner

# Executions in the thread before the first one on the loop. The mean covers about as many.
_FEWEST: Final = 8
_MAX_BYTES: Final = 64 << 10
# Maximum age of the mean. The model's memory may have been paged out since.
_RECENT_NS: Final = 60_000_000_000
# An execution counts for at most this many times the mean: the thread may only have waited for a
# processor.
_MAX_WEIGHT: Final = 2
# After an execution of _SURPRISE times the limit, the model is barred for _BARRED times its length.
# So the loop spends at most one part in twenty on such executions.
_SURPRISE: Final = 4
_BARRED: Final = 20


@dataclass(slots=True)
class _SizeClass:
    count: int = 0
    mean_ns: float = 0.0
    measured_at_ns: int = 0


class InlineRule:
    """Decides whether the loop may execute a batch. Each class of sizes is measured separately."""

    def __init__(self, limit_ns: int) -> None:
        """limit_ns: maximum average time of an execution."""
        self._limit_ns = limit_ns
        self._classes = [_SizeClass() for _ in range(_MAX_BYTES.bit_length() + 1)]
        self._barred_until_ns = 0

    def allows(self, size_bytes: int, now_ns: int) -> bool:
        """Return whether a batch of this size is expected to take no longer than the limit."""
        if size_bytes > _MAX_BYTES:
            return False
        measured = self._classes[size_bytes.bit_length()]
        return (
            measured.mean_ns <= self._limit_ns
            and measured.count >= _FEWEST
            and now_ns - measured.measured_at_ns <= _RECENT_NS
            and now_ns >= self._barred_until_ns
        )

    def record(self, size_bytes: int, elapsed_ns: int, now_ns: int) -> None:
        """Record an execution of a batch, either in the thread or on the loop."""
        if size_bytes > _MAX_BYTES:
            return
        measured = self._classes[size_bytes.bit_length()]
        if measured.count < _FEWEST:
            measured.count += 1
        else:
            elapsed_ns = min(elapsed_ns, int(_MAX_WEIGHT * measured.mean_ns))
        measured.mean_ns += (elapsed_ns - measured.mean_ns) / measured.count
        measured.measured_at_ns = now_ns

    def record_inline(self, size_bytes: int, elapsed_ns: int, now_ns: int) -> None:
        """Record an execution on the loop; bar the model for a while if it took too long."""
        self.record(size_bytes, elapsed_ns, now_ns)
        if elapsed_ns > _SURPRISE * self._limit_ns:
            self._barred_until_ns = now_ns + _BARRED * elapsed_ns


class InlineExecution:
    """Executions of one model on the event loop, while its instance's thread waits."""

    def __init__(self, runner: BatchRunner, rule: InlineRule) -> None:
        self._runner = runner
        self.rule = rule

    def execute(self, frame: bytes) -> bytes | None:
        """Execute a batch and return its Executed message, if the rule allows that.

        The message is empty if the batch was withdrawn. `None` leaves the batch to the thread.
        """
        started_ns = perf_counter_ns()
        if not self.rule.allows(len(frame), started_ns):
            return None
        runner = self._runner
        message = runner.read(frame)
        # The frame's size does not include tensors in shared memory.
        if not message.requests or any(request.is_shared for request in message.requests):
            return None
        batch = runner.begin(message, started_ns)
        if batch is None:
            return b""
        reply = runner.finish(batch)
        runner.received.end(batch)
        now_ns = perf_counter_ns()
        self.rule.record_inline(len(frame), now_ns - started_ns, now_ns)
        runner.record_execution(len(reply))
        if runner.traced is not None:
            runner.record_spans()
        return reply
