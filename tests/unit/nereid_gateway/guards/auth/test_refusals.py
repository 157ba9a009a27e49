"""Refusals are all counted, and logged once per address, reason and interval."""

from __future__ import annotations

import pytest

from nereid_gateway.core.access.refusal import INVALID_CREDENTIALS, NO_CREDENTIALS, Reason
from nereid_gateway.guards.auth.refusals import AccessRefusals


def test_one_line_per_address_reason_and_interval(caplog: pytest.LogCaptureFixture) -> None:
    refusals = AccessRefusals(lambda: 0.0)
    for port in range(50):
        refusals.add(INVALID_CREDENTIALS, f"10.0.0.1:{port}", "forged\nline")
        refusals.add(NO_CREDENTIALS, f"[fe80::1]:{port}")
    assert [record.getMessage() for record in caplog.records] == [
        r"refused a call: peer=10.0.0.1:0 reason=invalid_credentials: 'forged\nline'",
        f"refused a call: peer=[fe80::1]:0 reason=no_credentials: {NO_CREDENTIALS.message!r}",
    ]
    assert refusals.counts[Reason.INVALID_CREDENTIALS] == 50
    assert refusals.counts[Reason.NO_CREDENTIALS] == 50
    assert refusals.counts[Reason.RATE] == 0
