"""A mesh responds what a direct call gives, in whichever way and however often."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.differential.case import Case
from tests.differential.comparison import all_cases, run
from tests.differential.defects import DEFECTS, run_with_defect

pytestmark = pytest.mark.slow
_NIGHTLY = pytest.mark.nightly


# What of a model's twins and of random graphs is enough to see each way: a Python model with large
# tensors starts a worker for each of its variants, and most bodies do there what they do with small
# ones.
_LARGE_TWINS = ("views_", "fortran_order_", "byte_swapped_", "read_only_", "by_dlpack_")
_RANDOM_GRAPHS = ("random_0", "random_1", "random_2", "random_3")


def _is_more_of_the_same(case: Case) -> bool:
    if case.name.startswith("random_"):
        return case.name not in _RANDOM_GRAPHS
    return case.is_large and case.name.startswith(_LARGE_TWINS)


@pytest.mark.parametrize("has_more", [False, pytest.param(True, marks=_NIGHTLY)])
def test_all_ways_give_what_a_direct_call_gives(tmp_path: Path, *, has_more: bool) -> None:
    cases = [case for case in all_cases(seed=1) if has_more or not _is_more_of_the_same(case)]
    report = run(tmp_path, cases, 1, "--join=scheduler")
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
