"""Reads trace files in any of the supported formats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid_perf.inputs.errors import InputError
from nereid_perf.inputs.trace.own_format import read_lines
from nereid_perf.inputs.trace.record import TraceLimits
from nereid_perf.inputs.trace.triton_format import read_array

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nereid_perf.inputs.trace.record import TraceRecord

_LIMITS: Final = TraceLimits()
_PROBED_CHARS: Final = 4096


def read_traces(paths: Iterable[str], limits: TraceLimits = _LIMITS) -> Iterator[TraceRecord]:
    """Yield the requests of all files, in the files' order. May raise InputError."""
    count = 0
    for path in paths:
        for record in _read(path, limits):
            count += 1
            if count > limits.requests:
                raise InputError(f"{record.place}: more than {limits.requests} requests")
            yield record
    if not count:
        raise InputError(f"--replay: no request in {', '.join(paths)}")


def models_in_traces(paths: Iterable[str]) -> list[tuple[str, str]]:
    """Return the names and versions of requested models in order. May raise InputError."""
    return [*dict.fromkeys((record.model, record.version) for record in read_traces(paths))]


def _read(path: str, limits: TraceLimits) -> Iterator[TraceRecord]:
    try:
        # Triton writes models' strings unchanged, and they need not be UTF-8.
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            begin = file.read(_PROBED_CHARS).lstrip()
            file.seek(0)
            yield from (read_array if begin[:1] == "[" else read_lines)(path, file, limits)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
