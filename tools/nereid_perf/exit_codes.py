"""What `nereid perf` exits with: the first that applies, from the top."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nereid_perf.questions.asked import Findings


class ExitCode(IntEnum):
    """MISSED: a threshold or objective that was asked for."""

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
    """Of what was measured and found."""
    codes = {ExitCode.OK}
    judged = [each for side in findings.sides for each in side]
    found = findings.max_rate
    if found is not None:
        # Others have been too much on purpose.
        judged = [each for each in judged if each.level.value == found.rate]
        if found.is_limited_by_client:
            codes.add(ExitCode.CLIENT_WAS_BOTTLENECK)
        if not found.rate:
            codes.add(ExitCode.MISSED)
    if any(each.client.is_bottleneck for each in judged):
        codes.add(ExitCode.CLIENT_WAS_BOTTLENECK)
    if not all(each.is_stable for each in judged):
        codes.add(ExitCode.UNSTABLE)
    if findings.violations:
        codes.add(ExitCode.MISSED)
    return min(codes, key=_ORDER.index)
