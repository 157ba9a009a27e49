"""Trace files, written by a separate thread. A request only adds an entry to the thread's queue.

As on Triton, traces of a rule with a log frequency or a limit go to numbered files (FILE.0, FILE.1
and so on), and others to FILE. Triton writes FILE only when it ends. Here, FILE is valid JSON at
any time. Traces that cannot be queued or written are dropped. This is logged once a minute.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from queue import Empty, Full, Queue
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid_gateway.plane.tracing.file_format import Trace, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nereid.observability.tracing import Sampler

    # Task for the writing thread, which owns the batches.
    _Job = Callable[["TraceBatches"], Iterator["Write"]]

_log = logging.getLogger(__name__)

_MAX_QUEUED: Final = 4096
_MAX_QUEUED_TENSOR_BYTES: Final = 64 << 20
# A batch with more characters is written at once.
_MAX_BATCH_TEXT: Final = 16 << 20
# A trace may wait this long, to be written together with others.
_FLUSH_INTERVAL_S: Final = 0.5
_CLOSE_TIMEOUT_S: Final = 2.0
_WARNING_INTERVAL_S: Final = 60.0


class Write(NamedTuple):
    """Traces that are written together, to a file of their own if numbered is set."""

    texts: list[str]
    numbered: bool


@dataclass(slots=True)
class _Batch:
    texts: list[str] = field(default_factory=list)
    size: int = 0
    # Requests that have ended, with or without a trace.
    ended: int = 0


class TraceBatches:
    """Decides which traces are written together, and when. It does no I/O."""

    def __init__(self) -> None:
        self._batches: dict[Sampler, _Batch] = {}
        # None until set_samplers has been called.
        self._current: frozenset[Sampler] | None = None
        self._next_id = 1

    def add_trace(self, sampler: Sampler, trace: Trace | None) -> Iterator[Write]:
        """Count an ended request and add its trace, if any. Yield the traces to write now."""
        rule = sampler.rule
        batch = self._batches.setdefault(sampler, _Batch())
        batch.ended += 1
        if trace is not None:
            text = text_of(trace, rule, self._next_id)
            self._next_id += len(trace.models)
            if text:
                batch.texts.append(text)
                batch.size += len(text)
        full = 0 < rule.log_frequency <= len(batch.texts)
        if full or batch.ended == rule.limit or batch.size > _MAX_BATCH_TEXT:
            yield from self._write(batch, numbered=_is_numbered(sampler))
        if self._current is not None and sampler not in self._current:
            yield from self._end(sampler)

    def set_samplers(self, samplers: Sequence[Sampler]) -> Iterator[Write]:
        """Set the samplers in use. Yield the traces of all others, which end now."""
        self._current = frozenset(samplers)
        for sampler in [*self._batches]:
            if sampler not in self._current:
                yield from self._end(sampler)

    @property
    def due(self) -> bool:
        """True if there are traces to write to FILE. Only numbered files wait for more traces."""
        return any(
            batch.texts and not _is_numbered(sampler) for sampler, batch in self._batches.items()
        )

    def flush(self) -> Iterator[Write]:
        """Yield the traces to write to FILE."""
        for sampler, batch in self._batches.items():
            if not _is_numbered(sampler):
                yield from self._write(batch, numbered=False)

    def close(self) -> Iterator[Write]:
        """Yield all traces that are left."""
        for sampler in [*self._batches]:
            yield from self._end(sampler)

    def _end(self, sampler: Sampler) -> Iterator[Write]:
        # A rule with a limit and no log frequency gets a numbered file only when it reaches the
        # limit.
        batch = self._batches.pop(sampler)
        yield from self._write(batch, numbered=sampler.rule.log_frequency > 0)

    def _write(self, batch: _Batch, *, numbered: bool) -> Iterator[Write]:
        texts, batch.texts, batch.size = batch.texts, [], 0
        if texts:
            yield Write(texts, numbered)


def _is_numbered(sampler: Sampler) -> bool:
    return sampler.rule.log_frequency > 0 or sampler.rule.limit > 0


class TraceFiles:
    """A `file_recorder.TraceSink` that writes files. Call close() once."""

    def __init__(self, path: str, max_queued_tensor_bytes: int = _MAX_QUEUED_TENSOR_BYTES) -> None:
        self._path = Path(path)
        self._begun = False
        self._next_number = 0
        self._dropped = 0
        self._max_queued_tensor_bytes = max_queued_tensor_bytes
        # Bytes of tensors. Only one thread writes each count, so neither needs a lock.
        self._enqueued_bytes = 0
        self._dequeued_bytes = 0
        self._next_warning_s = 0.0
        self._queue: Queue[_Job | None] = Queue(_MAX_QUEUED)
        self._thread = threading.Thread(target=self._run, name="trace files", daemon=True)
        self._thread.start()

    def record_trace(self, sampler: Sampler, trace: Trace | None) -> None:
        """Enqueue a trace. Drop the trace if the queue is full."""
        size_bytes = 0 if trace is None else _tensor_bytes(trace)
        queued_bytes = self._enqueued_bytes - self._dequeued_bytes
        if size_bytes and queued_bytes + size_bytes > self._max_queued_tensor_bytes:
            self._dropped += 1
            trace, size_bytes = None, 0

        def add_trace(batches: TraceBatches) -> Iterator[Write]:
            self._dequeued_bytes += size_bytes
            return batches.add_trace(sampler, trace)

        if self._enqueue(add_trace):
            self._enqueued_bytes += size_bytes

    def set_samplers(self, samplers: Sequence[Sampler]) -> None:
        """Set the samplers in use, after the traces that are already queued."""
        self._enqueue(lambda batches: batches.set_samplers(samplers))

    def close(self) -> None:
        """Write the queued traces and end the thread. The call blocks for a bounded time."""
        try:
            self._queue.put(None, timeout=_CLOSE_TIMEOUT_S)
        except Full:
            return
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _enqueue(self, job: _Job) -> bool:
        try:
            self._queue.put_nowait(job)
        except Full:
            self._dropped += 1
            return False
        return True

    def _run(self) -> None:
        batches = TraceBatches()
        # When to write the traces for FILE, or None without traces.
        flush_s: float | None = None
        job: _Job | None = TraceBatches.flush
        while job is not None:
            self._save(job(batches))
            now_s = time.monotonic()
            if not batches.due:
                flush_s = None
            elif flush_s is None:
                flush_s = now_s + _FLUSH_INTERVAL_S
            job = TraceBatches.flush
            if flush_s is None or now_s < flush_s:
                with contextlib.suppress(Empty):
                    job = self._queue.get(timeout=None if flush_s is None else flush_s - now_s)
        self._save(batches.close())

    def _save(self, writes: Iterator[Write]) -> None:
        try:
            for write in writes:
                self._write(",".join(write.texts).encode(), numbered=write.numbered)
        except OSError as error:
            self._warn(f"{self._path} cannot be written: {error}")
        except Exception:
            # One bad trace must not end the thread.
            _log.exception("a trace cannot be written")
        if self._dropped:
            self._warn(f"{self._dropped} traces were dropped: {self._path} is written too slowly")

    def _write(self, text: bytes, *, numbered: bool) -> None:
        if numbered:
            path = self._path.with_name(f"{self._path.name}.{self._next_number}")
            self._next_number += 1
            _write_whole(path, b"[%b]" % text)
        elif self._begun and self._path.exists():
            with self._path.open("r+b") as file:
                file.seek(-1, 2)
                file.write(b",%b]" % text)
        else:
            _write_whole(self._path, b"[%b]" % text)
            self._begun = True

    def _warn(self, what: str) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_warning_s:
            self._next_warning_s = now_s + _WARNING_INTERVAL_S
            self._dropped = 0
            _log.warning("traces: %s", what)


def _tensor_bytes(trace: Trace) -> int:
    model_tensors = (model.tensors for model in trace.models)
    return sum(len(tensor.data or b"") for tensor in chain(trace.tensors, *model_tensors))


def _write_whole(path: Path, text: bytes) -> None:
    """Write a file that appears under its name only when it is complete."""
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(text)
    part.replace(path)
