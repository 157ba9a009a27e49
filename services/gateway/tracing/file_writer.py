"""Trace files, written by a thread of their own: the request path pays for an entry in a queue.

By Triton's rules, a rule with a log frequency, or with a limit, has its traces in numbered files,
FILE.0, FILE.1 and so on; other traces all go to FILE. There Triton writes when it ends; here it is
soon after each trace, and the file is whole JSON at any time. What cannot be kept or written is
lost, and told once a minute. Knows no request.
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

from nereid.services.gateway.tracing.file_format import Trace, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nereid.observability.tracing import Sampler

    _Act = Callable[["Batches"], Iterator["Write"]]

_log = logging.getLogger(__name__)

# Traces on their way to the thread, their tensors, and the text that waits to be written.
_MOST_WAITING: Final = 4096
_MOST_TENSOR_BYTES: Final = 64 << 20
_MOST_TEXT: Final = 16 << 20
# How long a trace may wait for others to be written with.
_PAUSE_S: Final = 0.5
_CLOSE_S: Final = 2.0
_PAUSE_BETWEEN_LINES_S: Final = 60.0


class Write(NamedTuple):
    """Traces to be written together; numbered: to a file of their own."""

    texts: list[str]
    numbered: bool


@dataclass(slots=True)
class _Batch:
    """The traces of one sampler that are not written."""

    texts: list[str] = field(default_factory=list)
    size: int = 0
    # All of them, and those of which there is nothing to tell.
    ended: int = 0


class Batches:
    """Which traces are written together, and when. Pure."""

    def __init__(self) -> None:
        self._batches: dict[Sampler, _Batch] = {}
        # None: nobody has said which samplers there are.
        self._current: frozenset[Sampler] | None = None
        self._next_id = 1

    def take(self, sampler: Sampler, trace: Trace | None) -> Iterator[Write]:
        """A request that sampler chose has ended."""
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
        if full or batch.ended == rule.limit or batch.size > _MOST_TEXT:
            yield from self._write(batch, numbered=_is_numbered(sampler))
        if self._current is not None and sampler not in self._current:
            yield from self._end(sampler)

    def follow(self, samplers: Sequence[Sampler]) -> Iterator[Write]:
        """Requests go by these: the traces of others are complete but for stragglers."""
        self._current = frozenset(samplers)
        for sampler in [*self._batches]:
            if sampler not in self._current:
                yield from self._end(sampler)

    @property
    def due(self) -> bool:
        """Whether there are traces that wait for no others."""
        return any(
            batch.texts and not _is_numbered(sampler) for sampler, batch in self._batches.items()
        )

    def flush(self) -> Iterator[Write]:
        """Those that wait for no others."""
        for sampler, batch in self._batches.items():
            if not _is_numbered(sampler):
                yield from self._write(batch, numbered=False)

    def close(self) -> Iterator[Write]:
        """All."""
        for sampler in [*self._batches]:
            yield from self._end(sampler)

    def _end(self, sampler: Sampler) -> Iterator[Write]:
        # One that has only a limit, and has not come to it, is not numbered.
        batch = self._batches.pop(sampler)
        yield from self._write(batch, numbered=sampler.rule.log_frequency > 0)

    def _write(self, batch: _Batch, *, numbered: bool) -> Iterator[Write]:
        texts, batch.texts, batch.size = batch.texts, [], 0
        if texts:
            yield Write(texts, numbered)


def _is_numbered(sampler: Sampler) -> bool:
    return sampler.rule.log_frequency > 0 or sampler.rule.limit > 0


class TraceFiles:
    """A file_tracing.Files. close() once; what comes after that is lost."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._begun = False
        self._next_number = 0
        self._lost = 0
        # Of tensors: what has been handed over, and what the thread has taken of it.
        self._given_bytes = 0
        self._taken_bytes = 0
        self._next_line_s = 0.0
        self._queue: Queue[_Act | None] = Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._run, name="trace files", daemon=True)
        self._thread.start()

    def take(self, sampler: Sampler, trace: Trace | None) -> None:
        size_bytes = 0 if trace is None else _size_bytes(trace)
        if size_bytes and self._given_bytes - self._taken_bytes + size_bytes > _MOST_TENSOR_BYTES:
            self._lost += 1
            trace, size_bytes = None, 0

        def act(batches: Batches) -> Iterator[Write]:
            self._taken_bytes += size_bytes
            return batches.take(sampler, trace)

        if self._put(act):
            self._given_bytes += size_bytes

    def follow(self, samplers: Sequence[Sampler]) -> None:
        self._put(lambda batches: batches.follow(samplers))

    def close(self) -> None:
        try:
            self._queue.put(None, timeout=_CLOSE_S)
        except Full:
            return
        self._thread.join(_CLOSE_S)

    def _put(self, act: _Act) -> bool:
        try:
            self._queue.put_nowait(act)
        except Full:
            self._lost += 1
            return False
        return True

    # ---- in the thread

    def _run(self) -> None:
        batches = Batches()
        # When to write what waits for no others; None: there is none.
        flush_s: float | None = None
        act: _Act | None = Batches.flush
        while act is not None:
            self._save(act(batches))
            now_s = time.monotonic()
            if not batches.due:
                flush_s = None
            elif flush_s is None:
                flush_s = now_s + _PAUSE_S
            act = Batches.flush
            if flush_s is None or now_s < flush_s:
                with contextlib.suppress(Empty):
                    act = self._queue.get(timeout=None if flush_s is None else flush_s - now_s)
        self._save(batches.close())

    def _save(self, writes: Iterator[Write]) -> None:
        try:
            for write in writes:
                self._write(",".join(write.texts).encode(), numbered=write.numbered)
        except OSError as error:
            self._complain(f"a file cannot be written: {error}")
        except Exception:
            # One trace shall not cost those after it.
            _log.exception("a trace cannot be written")
        if self._lost:
            self._complain(f"{self._lost} came faster than they can be written, and are lost")

    def _write(self, told: bytes, *, numbered: bool) -> None:
        if numbered:
            path = self._path.with_name(f"{self._path.name}.{self._next_number}")
            self._next_number += 1
            _write_whole(path, b"[%b]" % told)
        elif self._begun and self._path.exists():
            with self._path.open("r+b") as file:
                file.seek(-1, 2)
                file.write(b",%b]" % told)
        else:
            _write_whole(self._path, b"[%b]" % told)
            self._begun = True

    def _complain(self, what: str) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_line_s:
            self._next_line_s = now_s + _PAUSE_BETWEEN_LINES_S
            self._lost = 0
            _log.warning("traces: %s", what)


def _size_bytes(trace: Trace) -> int:
    below = (model.tensors for model in trace.models)
    return sum(len(each.data or b"") for each in chain(trace.tensors, *below))


def _write_whole(path: Path, told: bytes) -> None:
    """Write a file that nobody sees before it is whole."""
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(told)
    part.replace(path)
