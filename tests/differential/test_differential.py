"""A mesh responds what a direct call gives, in whichever way and however often."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.differential.comparison import all_cases, run
from tests.differential.defects import DEFECTS, run_with_defect

pytestmark = pytest.mark.slow
_NIGHTLY = pytest.mark.nightly


def test_all_ways_give_what_a_direct_call_gives(tmp_path: Path) -> None:
    report = run(tmp_path, all_cases(seed=1), 1, "--join=scheduler")
    assert not report.differences, "\n".join([str(report), *report.differences[:20]])


@pytest.mark.skipif(
    os.environ.get("NEREID_TEST_FORM") == "compiled", reason="compiled modules cannot be changed"
)
@pytest.mark.parametrize(
    "defect",
    [
        pytest.param(defect, marks=() if place == 0 else _NIGHTLY)
        for place, defect in enumerate(DEFECTS)
    ],
)
def test_a_planted_defect_is_found(tmp_path: Path, defect: str) -> None:
    report = run_with_defect(tmp_path, defect, 1)
    assert report.responses
    assert report.differences
