"""The generated references: pages of docs/reference, and the chart's table of values."""

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.values_reference import rows

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flag", "metric", "values"])
def test_a_page_is_what_its_declarations_say(name: str) -> None:
    argv = [sys.executable, str(ROOT / "scripts" / f"{name}_reference.py"), "--check"]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_values_have_their_comments() -> None:
    text = """\
# Of the chart, and of no value.

# The first,
# on two lines.
gateway:
  # How many.
  replicas: 2   # Not this.
  image: {repository: "a", tag: ""}
  # A section with a comment has a row; nested has none.
  service:
    nested:
      port: 80
# Not what is indented otherwise.
  # Of another.
scheduler:
  replicas: null
"""
    assert rows(text) == [
        ("`gateway`", "", "The first, on two lines."),
        ("`gateway.replicas`", "`2`", "How many."),
        ("`gateway.image`", '`{repository: "a", tag: ""}`', ""),
        ("`gateway.service`", "", "A section with a comment has a row; nested has none."),
        ("`gateway.service.nested.port`", "`80`", ""),
        # As the gateway's.
        ("`scheduler.replicas`", "`null`", "How many."),
    ]
