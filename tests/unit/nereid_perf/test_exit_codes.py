"""What a run ends with."""

import pytest

from nereid_perf.exit_codes import ExitCode, exit_code
from nereid_perf.measurement import ClientCost, Measurement
from nereid_perf.questions.asked import Findings
from nereid_perf.questions.max_rate import MaxRate, RateOutcome
from tests.support.measurements import measured, rate

_GOOD = measured(rate(10))
_UNSTABLE = measured(rate(20), is_stable=False)
_BOTTLENECK = measured(rate(30), client=ClientCost(20.0, 0.9, 0, is_bottleneck=True))


def _found(outcome: RateOutcome, value: float, *measurements: Measurement) -> Findings:
    found = MaxRate("p99=1ms", outcome, value, None, value, 2, measurements)
    return Findings((measurements,), max_rate=found)


@pytest.mark.parametrize(
    ("findings", "code"),
    [
        (Findings(((),)), ExitCode.OK),
        (Findings(((_GOOD,),)), ExitCode.OK),
        (Findings(((_UNSTABLE, _GOOD),)), ExitCode.UNSTABLE),
        (Findings(((_GOOD,), (_UNSTABLE, _BOTTLENECK))), ExitCode.CLIENT_WAS_BOTTLENECK),
        (Findings(((_GOOD,),), violations=("p99>1ms",)), ExitCode.MISSED),
        (Findings(((_UNSTABLE,),), violations=("p99>1ms",)), ExitCode.UNSTABLE),
    ],
)
def test_the_worst_level_counts(findings: Findings, code: ExitCode) -> None:
    assert exit_code(findings) == code


@pytest.mark.parametrize(
    ("findings", "code"),
    [
        # What was too much has been so on purpose.
        (_found(RateOutcome.FOUND, 10, _GOOD, _UNSTABLE, _BOTTLENECK), ExitCode.OK),
        (_found(RateOutcome.FOUND, 30, _GOOD, _BOTTLENECK), ExitCode.CLIENT_WAS_BOTTLENECK),
        (_found(RateOutcome.CLIENT, 10, _GOOD), ExitCode.CLIENT_WAS_BOTTLENECK),
        (_found(RateOutcome.NONE, 0, _GOOD), ExitCode.MISSED),
    ],
)
def test_of_a_search_the_rate_that_it_found_counts(findings: Findings, code: ExitCode) -> None:
    assert exit_code(findings) == code
