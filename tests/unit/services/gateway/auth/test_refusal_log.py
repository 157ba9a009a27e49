"""Refusals are all counted, and logged once per address, reason and interval."""

from __future__ import annotations

import pytest

from nereid.services.gateway.auth.refusal import INVALID_CREDENTIALS, NO_CREDENTIALS, Reason
from nereid.services.gateway.auth.refusal_log import RefusalLog


def test_one_line_per_address_reason_and_interval(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log = RefusalLog(lambda: now[0])
    for port in range(50):
        log.add(INVALID_CREDENTIALS, f"10.0.0.1:{port}", "forged\nline")
        log.add(NO_CREDENTIALS, f"[fe80::1]:{port}")
    assert [record.getMessage() for record in caplog.records] == [
        r"refused a call: peer=10.0.0.1 reason=invalid_credentials: 'forged\nline'",
        f"refused a call: peer=[fe80::1] reason=no_credentials: {NO_CREDENTIALS.message!r}",
    ]
    assert log.counts[Reason.INVALID_CREDENTIALS] == log.counts[Reason.NO_CREDENTIALS] == 50
    caplog.clear()
    now[0] = 61.0
    log.add(NO_CREDENTIALS, "10.0.0.1:1")
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "refused 98 further calls since the last report",
        "refused a call",
    ]


def test_many_addresses_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    log = RefusalLog(lambda: 0.0)
    for number in range(5000):
        log.add(NO_CREDENTIALS, f"10.0.{number // 250}.{number % 250}:1")
    assert len(caplog.records) == 100
    assert log.counts[Reason.NO_CREDENTIALS] == 5000
