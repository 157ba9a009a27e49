"""The generated references: pages of docs/reference, and the chart's table of values."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.triton_reference import SURFACE, Section, sections, unexplained_names
from scripts.values_reference import rows

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flag", "metric", "triton", "values"])
def test_a_page_is_what_its_declarations_say(name: str) -> None:
    argv = [sys.executable, str(ROOT / "scripts" / f"{name}_reference.py"), "--check"]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_each_name_of_triton_has_a_line() -> None:
    for section in sections(json.loads(SURFACE.read_text())):
        assert unexplained_names(section) == []


def test_a_name_without_a_line_is_found() -> None:
    declared, remarks = frozenset({"a", "b"}), {"b": "other", "c-*": "none"}
    assert not unexplained_names(Section("Names", ["a", "b", "c-1"], declared, remarks))
    assert unexplained_names(Section("Names", ["a", "c"], declared, {"b": "other"})) == [
        "Names: 'c' is not declared here and has no remark",
        "Names: the remark on 'b' is for no name",
    ]


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
