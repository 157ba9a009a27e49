"""The generated pages of docs/reference."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flag", "metric"])
def test_a_page_is_what_its_declarations_say(name: str) -> None:
    argv = [sys.executable, str(ROOT / "scripts" / f"{name}_reference.py"), "--check"]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
