"""What a mesh responds is what a direct call gives, in whichever way and however often."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.differential.comparison import all_cases, compare, write_repository
from tests.support.mesh.mesh import running

pytestmark = pytest.mark.slow
FLAGS = ("--cache-config=local,size=33554432", "--allow-client-shm=true")


@pytest.mark.parametrize("join", ["scheduler", "all"])
def test_all_ways_give_what_a_direct_call_gives(tmp_path: Path, join: str) -> None:
    cases = all_cases(seed=1)
    write_repository(tmp_path / "models", cases)
    with running(tmp_path / "models", tmp_path / "log", *FLAGS, f"--join={join}") as mesh:
        report = compare(mesh, cases, 1)
    assert not report.differences, "\n".join([str(report), *report.differences[:20]])
