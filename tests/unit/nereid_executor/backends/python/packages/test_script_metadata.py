"""PEP 723 lines of a model.py."""

from __future__ import annotations

import pytest

from nereid_executor.backends.python.packages.script_metadata import (
    allows_python,
    read_script_metadata,
)

BLOCK = """import os
# /// script
# requires-python = ">=3.9, <4"
# dependencies = [
#   "alpha>=1",
#   # a comment
#
#   "beta",
# ]
# ///
# more
"""


def test_a_block() -> None:
    metadata = read_script_metadata(BLOCK)
    assert metadata is not None
    assert metadata.dependencies == ("alpha>=1", "beta")
    assert metadata.requires_python == ">=3.9, <4"
    assert read_script_metadata("# /// other\n# ///\n") is None
    assert read_script_metadata("# /// script\n# ///\n") == ((), "")


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ("# dependencies = []", "does not end"),
        ("# dependencies = [\n# ///", "no TOML"),
        ("# dependencies = 'alpha'\n# ///", "no list of strings"),
        ("# dependencies = [1]\n# ///", "no list of strings"),
        ("# requires-python = 3.11\n# ///", "no string"),
        ("# requires-python = '<2, three'\n# ///", "clause 'three'"),
    ],
)
def test_malformed_blocks(block: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_script_metadata(f"# /// script\n{block}\n")


@pytest.mark.parametrize(
    ("specifier", "allowed"),
    [
        ("", True),
        (">=3.11", True),
        (">=3.12", False),
        (">3.11", True),
        (">3.11.7", False),
        ("<3.12,>=3.9", True),
        ("<=3.11", False),
        ("==3.11.*", True),
        ("==3.11", False),
        ("!=3.11.*", False),
        ("!=3.11", True),
        ("~=3.9", True),
        ("~=3.11.8", False),
        ("~=3.10.1", False),
    ],
)
def test_versions_of_python(specifier: str, allowed: bool) -> None:
    assert allows_python(specifier, (3, 11, 7)) is allowed
