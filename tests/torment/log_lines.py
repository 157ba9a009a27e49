"""What services log in a campaign, and which of it a disruption permits.

An ERROR line, a traceback, and a line that says that a peer broke a protocol each fail a campaign,
also where no request did: they are how a defect shows before a client sees it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

_ERROR: Final = re.compile(r"E\d{4} \d|\S+ \S+ (?:ERROR|CRITICAL) |\s*Traceback \(most recent")
_BREACH: Final = re.compile(
    r"broke the protocol|malformed|cannot be understood|which it does not have|unknown command"
)
# By the beginning of a disruption's kind, or of a shape's: the errors that it may cause. Others are
# defects.
_PERMITTED: Final = (
    # A model's file that cannot be loaded, read or written; the last version goes on.
    (
        ("broken-edit", "reload", "disk-"),
        re.compile(
            r"is UNAVAILABLE|load failed for model|cannot be (?:read|loaded|written|recorded)"
            r"|No space left|Read-only"
        ),
    ),
    # A worker's process ends while its executor lives.
    (
        ("kill-worker", "stop-worker", "kill-executor", "stop-executor", "roll-executor", "join"),
        re.compile(r"lost its model|Stub process|is stopped for \d+ s; killing it"),
    ),
    # What stands still for too long is started again, where `nereid serve` does that.
    (("stop-",), re.compile(r"hangs: no heartbeat for")),
    # A Python model that does not catch what its own call raises; as Triton logs it.
    (
        ("kill-scheduler", "stop-scheduler", "roll-scheduler", "partition", "loss", "delay"),
        re.compile(r"TritonModelException: .*the scheduler cannot be reached"),
    ),
    (
        ("deadlines",),
        re.compile(r"TritonModelException: (?:the deadline .*passed|deadline exceeded while)"),
    ),
)


def unpermitted(lines: Iterable[str], kinds: Collection[str]) -> Iterator[str]:
    """The lines that no disruption of these kinds, and no shape of the load, permits."""
    permitted = [
        pattern for begins, pattern in _PERMITTED if any(kind.startswith(begins) for kind in kinds)
    ]
    for line in lines:
        is_error = _ERROR.match(line) and not any(each.search(line) for each in permitted)
        if is_error or is_breach(line):
            yield line.rstrip()


def is_breach(line: str) -> bool:
    """Whether it says that a peer broke a protocol."""
    return _BREACH.search(line) is not None
