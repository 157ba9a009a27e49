"""Which environments are removed."""

from __future__ import annotations

import pytest

from nereid_executor.backends.python.packages.eviction import (
    KeptEnvironment,
    KeptLimits,
    select_excess,
)

KEPT = {
    "newest": KeptEnvironment(10, 3),
    "used": KeptEnvironment(10, 0, in_use=True),
    "oldest": KeptEnvironment(10, 1),
    "second": KeptEnvironment(10, 2),
}


@pytest.mark.parametrize(
    ("limits", "removed"),
    [
        (KeptLimits(4, 40), ()),
        (KeptLimits(4, 0), ()),
        (KeptLimits(3, 0), ("oldest",)),
        (KeptLimits(4, 39), ("oldest",)),
        (KeptLimits(4, 20), ("oldest", "second")),
        (KeptLimits(0, 0), ("oldest", "second", "newest")),
    ],
)
def test_the_least_recently_used_are_removed(limits: KeptLimits, removed: tuple[str, ...]) -> None:
    assert select_excess(KEPT, limits) == removed
