"""How processes that serve one port share its connections: decided by counts alone."""

import pytest

from nereid.rpc.net.shared_ports import ConnectionShare


def shares(*counts: int | None) -> list[ConnectionShare]:
    """Members with so many connections each; None: it accepts none."""
    row = memoryview(bytearray(4 * len(counts))).cast("I")
    made = [ConnectionShare(row, member) for member in range(len(counts))]
    for share, count in zip(made, counts, strict=True):
        if count is not None:
            share.set_open(count)
    return made


@pytest.mark.parametrize(
    ("counts", "accepting"),
    [
        ((0, 0), [True, True]),
        ((1, 0), [False, True]),
        ((7, 6), [False, True]),
        # From 8 on, an eighth more is no reason to leave a connection to another.
        ((9, 8), [True, True]),
        ((10, 8), [False, True]),
        ((72, 64, 65), [True, True, True]),
        ((73, 64, 65), [False, True, True]),
        # One that does not accept, or was killed, is left out.
        ((5, None, 6), [True, True, False]),
        ((5, None), [True, True]),
    ],
    ids=str,
)
def test_a_connection_is_for_the_member_with_the_fewest(
    counts: tuple[int | None, ...], accepting: list[bool]
) -> None:
    assert [share.should_accept() for share in shares(*counts)] == accepting


def test_connections_count_from_when_they_are_accepted() -> None:
    one, other = shares(0, 0)
    one.begin_opening()
    assert (one.should_accept(), other.should_accept()) == (False, True)
    other.begin_opening()
    other.end_opening()  # a handshake that failed
    assert not one.should_accept()
    other.begin_opening()
    other.set_open(1)
    other.end_opening()
    assert (one.should_accept(), other.should_accept()) == (True, True)


def test_a_member_that_has_closed_its_port_is_left_out() -> None:
    one, other = shares(1, 0)
    other.close()
    assert one.should_accept()
