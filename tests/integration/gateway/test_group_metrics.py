"""The series of a group of gateways, some of which are not there."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from nereid.observability.metrics import GATEWAY_LINKED
from nereid.observability.metrics_page import Page
from nereid_gateway.plane.control.group_metrics import GroupMetrics


def write(page: Page) -> None:
    page.add_value(GATEWAY_LINKED, 1)


def members(page: bytes) -> set[str]:
    """The gateways whose series a page has."""
    return {each for each in "01" if f'nereid_gateway_linked{{gateway="{each}"}}' in page.decode()}


async def test_a_gateway_that_is_missing_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "nereid_gateway.plane.control.group_metrics")
    first = GroupMetrics(0, 2, tmp_path, write)
    await first.start()
    for _ in range(2):
        for _ in range(3):
            assert members(await first.read_page()) == {"0"}
        (record,) = caplog.records
        assert "lacks the series of a gateway: metrics-1.sock" in record.getMessage()
        caplog.clear()
        second = GroupMetrics(1, 2, tmp_path, write)
        await second.start()
        assert members(await first.read_page()) == {"0", "1"}
        assert not caplog.records
        await second.close()
    await first.close()
