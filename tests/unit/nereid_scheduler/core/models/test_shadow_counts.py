from __future__ import annotations

from nereid_scheduler.core.models.shadow_counts import Compared, ShadowCounts


def test_sums_gateways_and_begins_anew_with_another_shadow() -> None:
    counts = ShadowCounts()
    assert counts.total("m", "a") == (0, 0)
    counts.report("m", "a", 1, Compared(10, 1))
    counts.report("m", "a", 2, Compared(5, 2))
    counts.report("m", "a", 1, Compared(20, 1))
    counts.report("n", "a", 1, Compared(1, 1))
    assert counts.total("m", "a") == (25, 3)
    assert counts.total("m", "b") == (0, 0)
    counts.report("m", "b", 1, Compared(1, 0))
    assert counts.total("m", "b") == (1, 0)
    counts.forget("m")
    counts.forget("unknown")
    assert counts.total("m", "b") == (0, 0)


def test_forgets_the_gateway_that_has_not_reported_for_longest() -> None:
    counts = ShadowCounts(max_gateways=2)
    for gateway in (1, 2, 1, 3):
        counts.report("m", "a", gateway, Compared(gateway, 0))
    assert counts.total("m", "a") == (1 + 3, 0)
