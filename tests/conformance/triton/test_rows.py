"""The protocol table against both servers: the recorded responses are still the real ones."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.exchange import dumped
from tests.conformance.row import Row, load_expected
from tests.conformance.table import groups
from tests.conformance.triton.conftest import ASKED, Pair, skipping
from tests.conformance.triton.triton import Triton


def test_nereid_responds_as_recorded(pair: Pair, subtests: pytest.Subtests) -> None:
    expected = load_expected()
    for group, rows in groups(pair.name).items():
        with subtests.test(group):
            wrong = []
            for row in rows:
                recorded = expected[row.name]
                wanted = dumped(recorded.get("nereid", recorded.get("triton")))
                ours = dumped(row.ask(pair.nereid))
                if ours != wanted and not row.missing:
                    wrong.append(f"{row.name}: Nereid\n  {ours}\n  {wanted}")
            assert not wrong, "\n".join(wrong)


def test_triton_responds_as_recorded(pair: Pair) -> None:
    expected = load_expected()
    # Waiting for no response takes too long.
    rows = [
        row
        for each in groups(pair.name).values()
        for row in each
        if expected[row.name].get("triton", "no answer") != "no answer"
    ]
    steady: set[str] | None = None
    for _ in range(ASKED):
        with skipping():
            if steady is not None:
                # A response may depend on earlier rows: ask all of them again.
                pair.triton.renew()
            wrong = _wrong(pair.triton, rows, expected)
        steady = wrong if steady is None else steady & wrong
        if not steady:
            return
    raise AssertionError("\n".join(sorted(steady or ())))


def _wrong(triton: Triton, rows: list[Row], expected: dict[str, dict[str, Any]]) -> set[str]:
    """Where one server, asked all rows, differs from what is recorded."""
    wrong = set()
    deaths = len(triton.deaths)
    for row in rows:
        real = dumped(triton.ask(row))
        if real != dumped(expected[row.name]["triton"]):
            reported = f"{row.name}: Triton\n  {real}"
            print(reported)
            # One that was started anew has forgotten what rows before had done.
            if len(triton.deaths) == deaths:
                wrong.add(reported)
    return wrong
