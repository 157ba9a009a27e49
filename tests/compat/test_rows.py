"""The protocol table against both servers: the recorded answers are still the real ones."""

from __future__ import annotations

import pytest

from tests.compat.conftest import Pair
from tests.protocol.exchange import dumped
from tests.protocol.row import load_expected
from tests.protocol.table import groups


def test_both_answer_as_recorded(pair: Pair, subtests: pytest.Subtests) -> None:
    expected = load_expected()
    for group, rows in groups(pair.name).items():
        with subtests.test(group):
            wrong = []
            for row in rows:
                recorded = expected[row.name]
                # Waiting for no answer takes too long.
                if recorded.get("triton", "no answer") != "no answer":
                    real = pair.triton.ask(row)
                    if dumped(real) != dumped(recorded["triton"]):
                        told = f"{row.name}: Triton\n  {dumped(real)}"
                        # One that was started anew has forgotten what rows before had done.
                        print(told) if pair.triton.deaths else wrong.append(told)
                wanted = recorded.get("nereid", recorded.get("triton"))
                ours = row.ask(pair.nereid)
                if dumped(ours) != dumped(wanted) and not row.missing:
                    wrong.append(f"{row.name}: Nereid\n  {dumped(ours)}\n  {dumped(wanted)}")
            assert not wrong, "\n".join(wrong)
