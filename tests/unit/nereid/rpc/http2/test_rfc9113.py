"""RFC 9113, section by section, on the pure connection."""

import pytest

from tests.support.rpc.connection_harness import ServerHarness
from tests.support.rpc.rfc9113 import MARKED, ROWS, Client, check_outcome


@pytest.mark.parametrize("name", ROWS)
def test_section(name: str) -> None:
    write, outcome = ROWS[name]
    server = ServerHarness().feed(write(Client()), MARKED)
    check_outcome(server.sent_frames(), outcome)


@pytest.mark.parametrize("name", ROWS)
def test_section_in_crumbs(name: str) -> None:
    write, outcome = ROWS[name]
    data = write(Client()) + MARKED
    server = ServerHarness().feed(*(data[at : at + 1000] for at in range(0, len(data), 1000)))
    check_outcome(server.sent_frames(), outcome)
    small = data[:5000]
    one, other = ServerHarness(), ServerHarness()
    one.feed(small)
    other.feed(*(small[at : at + 1] for at in range(len(small))))
    assert other.sent_frames() == one.sent_frames()
