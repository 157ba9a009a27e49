"""What `nereid perf` exits with: the first that applies, from the top."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """MISSED: a threshold or objective that was asked for."""

    USAGE = 2
    FAILED = 1
    CLIENT_WAS_BOTTLENECK = 4
    UNSTABLE = 5
    MISSED = 3
    OK = 0


TEXT = """\
exit codes: 0: measured; 1: it could not be measured, or all requests failed; 2: wrong flags; 3: a
threshold or objective was missed; 4: at some level the client was the bottleneck: its figures say
more of this machine than of the server; 5: at some level figures were not stable. Of several the
first in the order 2, 1, 4, 5, 3.
"""
