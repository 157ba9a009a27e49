"""Short batches that the event loop executes itself, where it shares its process with the executor.

A batch costs two wake-ups of threads on its way to the instance's thread and back, and both threads
want the interpreter's lock meanwhile: that takes longer than a small model. So the loop runs it
while the thread does nothing, if it will not stall the others: InlineRule decides that, by what was
measured before.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nereid_executor.batch.batch_runner import BatchRunner

# Executions in the thread before the first one on the loop, and about how many the mean spans.
_FEWEST: Final = 8
_MAX_BYTES: Final = 64 << 10
# A mean that is older says little: the model's memory may have been paged out.
_RECENT_NS: Final = 60_000_000_000
# No execution counts for more than this many times the mean: a thread that was not scheduled
# meanwhile says little of the model.
_MAX_WEIGHT: Final = 2
# An execution that takes this many times the limit bars the model for so many times as long, so
# that the loop spends at most one part in twenty on such surprises.
_SURPRISE: Final = 4
_BARRED: Final = 20


@dataclass(slots=True)
class _SizeClass:
    """What was measured of frames whose sizes differ by less than a factor of two."""

    count: int = 0
    mean_ns: float = 0.0
    measured_at_ns: int = 0


class InlineRule:
    """Whether the loop may execute a batch of one model. Pure: the time is passed in.

    Larger batches take longer, and so do larger requests to models with variable shapes: each class
    of sizes is measured for itself.
    """

    def __init__(self, limit_ns: int) -> None:
        """limit_ns: the longest that an execution may take on average."""
        self._limit_ns = limit_ns
        self._classes = [_SizeClass() for _ in range(_MAX_BYTES.bit_length() + 1)]
        self._barred_until_ns = 0

    def allows(self, size_bytes: int, now_ns: int) -> bool:
        """Whether a batch of this size is expected to take no longer than the limit."""
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
        """A batch was executed, wherever that was."""
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
        """As record(), of an execution that the loop has had to wait for."""
        self.record(size_bytes, elapsed_ns, now_ns)
        if elapsed_ns > _SURPRISE * self._limit_ns:
            self._barred_until_ns = now_ns + _BARRED * elapsed_ns


class InlineExecution:
    """One model's executions on the event loop, while its instance's thread waits."""

    def __init__(self, runner: BatchRunner, rule: InlineRule) -> None:
        """rule: the thread records there how long its executions take."""
        self._runner = runner
        self.rule = rule

    def execute(self, frame: bytes) -> bytes | None:
        """An Executed message; empty: the batch was withdrawn, None: it is for the thread."""
        started_ns = perf_counter_ns()
        if not self.rule.allows(len(frame), started_ns):
            return None
        runner = self._runner
        message = runner.read(frame)
        # The frame's size does not say how large tensors in shared memory are.
        if not message.requests or any(each.is_shared for each in message.requests):
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
