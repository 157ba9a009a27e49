"""Tables of published tests: each row has a result, and a test of ours or a reason."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[3]
PAGE = ROOT / "docs" / "operators" / "openai-api.md"
RESULTS = ("passes", "differs", "does not apply")
# Numbers of rows by the names of tables, and those of the page's lines.
TABLES = {
    "triton_front_end": (136, "Triton's OpenAI front end"),
    "vllm": (203, "vLLM"),
    "vllm_decisions": (24, "vLLM, decisions"),
    "tei": (34, "TEI"),
    "envoy_ai_gateway": (64, "Envoy AI Gateway"),
    "open_responses": (7, "OpenResponses"),
}


class Row(NamedTuple):
    published: str
    result: str
    # Tests of the suite beside the table, or of another file by its path.
    ours: list[str]
    reason: str


def read(name: str) -> list[Row]:
    _, *lines = (FOLDER / f"{name}.tsv").read_text().splitlines()
    rows = [line.split("\t") for line in lines]
    return [Row(row[0], row[1], row[2].split(), row[3]) for row in rows]


@cache
def functions_of(path: Path) -> set[str]:
    """Names of the tests in a file."""
    return set(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE))


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_whole(name: str) -> None:
    rows = read(name)
    count, label = TABLES[name]
    assert len({row.published for row in rows}) == len(rows) == count
    mentioned = set()
    for row in rows:
        assert row.result in RESULTS
        assert bool(row.ours) == (row.result != "does not apply"), row
        assert bool(row.reason) == (row.result != "passes"), row
        for test in row.ours:
            path, _, function = test.rpartition("::")
            assert function in functions_of(ROOT / path if path else FOLDER / f"test_{name}.py"), (
                test
            )
            if not path:
                mentioned.add(function)
    # No test of the suite is without its row, and none is missing.
    assert mentioned == functions_of(FOLDER / f"test_{name}.py")
    counts = Counter(row.result for row in rows)
    line = f"| {label} | {' | '.join(str(counts[result]) for result in RESULTS)} |"
    assert line in PAGE.read_text()
