"""What `nereid perf` exits with: the first that applies, from the top."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """MISSED is for thresholds and objectives that were asked for."""

    USAGE = 2
    FAILED = 1
    CLIENT_WAS_BOTTLENECK = 4
    UNSTABLE = 3
    MISSED = 5
    OK = 0


TEXT = """\
exit codes: 0: measured; 1: it could not be measured, or all requests failed; 2: wrong flags; 3: at
some level figures were not stable; 4: at some level the client was the bottleneck: its figures say
more of this machine than of the server; 5: a threshold or objective was missed. Of several the
first in the order 2, 1, 4, 3, 5.
"""
