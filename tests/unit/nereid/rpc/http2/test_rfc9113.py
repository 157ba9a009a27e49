"""RFC 9113, section by section, on the pure connection."""

import pytest

from tests.support.rpc.http2_peers import Side
from tests.support.rpc.rfc9113 import MARKED, ROWS, Client, judge


@pytest.mark.parametrize("name", ROWS)
def test_section(name: str) -> None:
    write, outcome = ROWS[name]
    side = Side().give(write(Client()), MARKED)
    judge(side.take(), outcome)


@pytest.mark.parametrize("name", ROWS)
def test_section_in_crumbs(name: str) -> None:
    write, outcome = ROWS[name]
    data = write(Client()) + MARKED
    side = Side().give(*(data[at : at + 1000] for at in range(0, len(data), 1000)))
    judge(side.take(), outcome)
    small = data[:5000]
    one, other = Side(), Side()
    one.give(small)
    other.give(*(small[at : at + 1] for at in range(len(small))))
    assert other.take() == one.take()
