"""Exit codes of `nereid perf`. If several codes apply, the first of them in ExitCode counts."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nereid_perf.questions.asked import Findings


class ExitCode(IntEnum):
    """Exit code of a run; MISSED: the run misses a threshold or objective given by flags."""

    USAGE = 2
    FAILED = 1
    CLIENT_WAS_BOTTLENECK = 4
    UNSTABLE = 5
    MISSED = 3
    OK = 0


_ORDER: Final = tuple(ExitCode)
TEXT: Final = """\
Exit status: 0: measured; 1: it could not be measured, or all requests failed; 2: wrong flags or
input data; 3: --fail-if holds, or no rate keeps --slo; 4: the client was the bottleneck: figures
say more of this machine than of the server; 5: figures were not stable. Of several the first in the
order 2, 1, 4, 5, 3. Of --find-max-rate the rate that it found counts alone, else every level.
"""


def exit_code(findings: Findings) -> ExitCode:
    """Return the exit code for the measurements and the findings."""
    codes = {ExitCode.OK}
    judged = [measurement for side in findings.sides for measurement in side]
    max_rate = findings.max_rate
    if max_rate is not None:
        # Judge only the rate that was found. Elsewhere, the search exceeds the capacity on purpose.
        judged = [measurement for measurement in judged if measurement.level.value == max_rate.rate]
        if max_rate.is_limited_by_client:
            codes.add(ExitCode.CLIENT_WAS_BOTTLENECK)
        if not max_rate.rate:
            codes.add(ExitCode.MISSED)
    if any(measurement.client.is_bottleneck for measurement in judged):
        codes.add(ExitCode.CLIENT_WAS_BOTTLENECK)
    if not all(measurement.is_stable for measurement in judged):
        codes.add(ExitCode.UNSTABLE)
    if findings.violations:
        codes.add(ExitCode.MISSED)
    return min(codes, key=_ORDER.index)
