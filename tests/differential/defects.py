"""Runs the comparison on a mesh with one planted defect, on the models that it shows on."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

from tests.differential.comparison import Report, all_cases, run

_HOOKS = Path(__file__).with_name("planted_defects.py")
# By defect, the models that are enough to find it.
DEFECTS = {
    "a buffer that is not written": ("only_the_input",),
    "one element late": ("views_of_the_input",),
    "a stale head": ("non_zero",),
    "two members swapped": ("views_of_the_input",),
    "a kept array changed": ("kept_and_changed_6",),
    "a view freed": ("large",),
    "a wrong endianness": ("index_that_may_be_out_of_range",),
    "a count lost": ("slices",),
}


def run_with_defect(root: Path, defect: str, seed: int) -> Report:
    """Compare on a mesh whose processes have the defect."""
    cases = [case for case in all_cases(seed) if case.name in DEFECTS[defect]]
    with patch.dict(os.environ, {"MESH_TEST_HOOKS": str(_HOOKS), "PLANTED_DEFECT": defect}):
        return run(root, cases, seed, stops_early=True)
