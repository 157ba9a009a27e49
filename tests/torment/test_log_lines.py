"""Log lines that fail a campaign.

Kept as a test of an oracle: a pattern that matches nothing lets every campaign pass.
"""

import pytest

from tests.torment.log_lines import unpermitted

LOAD = "2026-11-23 20:00:00,000 ERROR nereid.loader: model 'onnx' version 1 is UNAVAILABLE: broken"
TRITON = 'E1123 20:00:00.000000 7 loader.py:98] "a batch cannot be sent"'
BREACH = "2026-11-23 20:00:00,000 WARNING nereid.loader: instance m_0 broke the protocol"
TRACE = "    Traceback (most recent call last):"
NESTED = (
    "2026-11-23 20:00:00,000 ERROR nereid.bls: bls_0: TritonModelException: the deadline of"
    " the requests that it is for passed"
)
UNREACHABLE = (
    "2026-11-23 20:00:00,000 ERROR nereid.bls: bls_0: TritonModelException: Model steady - Error"
    " when running inference: the scheduler cannot be reached"
)
FINE = "2026-11-23 20:00:00,000 WARNING nereid.loader: executor 'e' was lost; no ERROR here"


@pytest.mark.parametrize(
    ("line", "kinds", "fails"),
    [
        (LOAD, ["kill-gateway"], True),
        (LOAD, ["kill-gateway", "broken-edit"], False),
        (TRITON, ["broken-edit", "kill-worker"], True),
        (BREACH, ["broken-edit", "kill-executor"], True),
        (TRACE, ["kill-executor"], True),
        (NESTED, ["kill-executor", "cancellations"], True),
        (NESTED, ["deadlines"], False),
        (UNREACHABLE, ["kill-executor", "deadlines"], True),
        (UNREACHABLE, ["kill-scheduler"], False),
        (FINE, [], False),
    ],
)
def test_errors_fail_a_campaign_unless_a_disruption_permits_them(
    line: str, kinds: list[str], fails: bool
) -> None:
    assert list(unpermitted([f"{line}\n", FINE], kinds)) == ([line] if fails else [])
