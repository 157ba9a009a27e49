"""Breakdown of a request's time, which a response shows in W3C's Server-Timing format."""

from __future__ import annotations

import re
from enum import Enum
from time import monotonic_ns
from typing import TYPE_CHECKING, Final

from nereid.core.wire.messages import RequestTimings

if TYPE_CHECKING:
    from nereid_gateway.core.request_record import RequestRecord

# Header or metadata key of a request. Values other than 1 are ignored, because a wrong header must
# not fail an inference.
HEADER: Final = "nereid-timing"
HEADER_BYTES: Final = HEADER.encode()
# Header or metadata key of the response.
SERVER_TIMING: Final = "server-timing"
# Parameter of stream responses. A stream has trailers only once, for all its requests.
STREAM_PARAMETER: Final = "server_timing"

_CACHE: Final = "cache"
_ASKED: Final = frozenset({"1", b"1"})
_UNQUOTED: Final = re.compile(r"[^ !#-\[\]-~]")
_MAX_TEXT: Final = 128
_UNKNOWN: Final = RequestTimings()


class TimedRequests(Enum):
    """Setting that says which responses have timings."""

    NEVER = "never"
    REQUESTED = "requested"
    ALWAYS = "always"

    def include(self, asked: str | bytes | None) -> bool:
        """Return whether a request gets timings. asked: the value of its header."""
        if self is TimedRequests.REQUESTED:
            return asked in _ASKED
        return self is TimedRequests.ALWAYS


def server_timing(record: RequestRecord) -> str:
    """Return the value of Server-Timing for a response that is sent now."""
    timings = record.timings or _UNKNOWN
    total_ns = left_ns = monotonic_ns() - record.received_ns
    entries = []
    for name, phase_ns in timings.phases:
        # Clocks of several hosts measured the phases, so their sum is limited.
        ns = min(phase_ns, left_ns)
        left_ns -= ns
        outcome = f";desc={'hit' if timings.cached else 'miss'}" if name == _CACHE else ""
        entries.append(f"{name};dur={ns / 1e6:.3f}{outcome}")
    entries += (f"network;dur={left_ns / 1e6:.3f}", f"total;dur={total_ns / 1e6:.3f}")
    if timings.batch_size:
        entries.append(f"batch-size;desc={timings.batch_size}")
    if timings.instance:
        entries.append(f'instance;desc="{_quotable(timings.instance)}"')
    if timings.attempt:
        entries.append(f"attempt;desc={timings.attempt}")
    return ", ".join(entries)


def _quotable(text: str) -> str:
    """Return text that can be quoted in a header. Operators may give instances any name."""
    return _UNQUOTED.sub("?", text[:_MAX_TEXT])
