"""How processes that serve one port share its connections: decided by counts alone."""

import pytest

from nereid.rpc.net.limits.shared_accepts import (
    COUNT_BYTES,
    AcceptDecision,
    AcceptDecisions,
    ConnectionShare,
    GroupCounts,
    refuse,
)


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


def test_a_member_that_drains_is_left_out_while_its_connections_end() -> None:
    one, other = shares(1, 2)
    other.close()
    other.set_open(0)
    other.begin_opening()
    other.end_opening()
    assert one.should_accept()


def test_a_lone_member_accepts() -> None:
    decisions = AcceptDecisions(None)
    assert [decisions.next_decision(accepted) for accepted in (0, 1)] == [
        AcceptDecision.ACCEPT,
        AcceptDecision.ACCEPT,
    ]


def test_a_connection_is_left_to_who_has_fewer_and_not_for_ever() -> None:
    one, _ = shares(3, 0)
    decisions = AcceptDecisions(one)
    assert decisions.next_decision(accepted=1) is AcceptDecision.LEAVE
    for _ in range(10):
        assert decisions.next_decision(accepted=0) is AcceptDecision.YIELD
        decisions.on_yielded(waits=True)
    assert decisions.next_decision(accepted=0) is AcceptDecision.ACCEPT
    # The next one is left to the other again.
    assert decisions.next_decision(accepted=0) is AcceptDecision.YIELD
    decisions.on_yielded(waits=False)
    assert decisions.next_decision(accepted=0) is AcceptDecision.YIELD


def counts_of(ports: int, members: int) -> GroupCounts:
    cells = memoryview(bytearray((ports + 1) * members * COUNT_BYTES)).cast("I")
    return GroupCounts(cells, members)


def test_a_member_that_has_ended_is_forgotten_at_all_ports() -> None:
    counts = counts_of(2, 2)
    for member in range(2):
        counts.serving[member] = 1
        for port in counts.ports:
            ConnectionShare(port, member).set_open(5)
    counts.clear_member(0)
    assert [each.tolist() for each in (*counts.ports, counts.serving)] == [[0, 6], [0, 6], [0, 1]]
    assert counts.is_served()
    counts.clear_member(1)
    assert not counts.is_served()


class Listening:
    def __init__(self, counts: GroupCounts, *, listens: bool, member_comes: bool) -> None:
        self.counts = counts
        self.listens, self.member_comes = listens, member_comes

    def shutdown(self, how: int, /) -> None:
        if not self.listens:
            raise OSError(how)
        self.listens = False
        if self.member_comes:
            self.counts.serving[0] = 1

    def listen(self, backlog: int, /) -> None:
        self.listens = True


@pytest.mark.parametrize(
    ("listens", "member_comes", "after"),
    [(False, False, False), (True, False, False), (True, True, True)],
)
def test_connections_are_refused_unless_a_member_comes_meanwhile(
    listens: bool, member_comes: bool, after: bool
) -> None:
    counts = counts_of(1, 1)
    sock = Listening(counts, listens=listens, member_comes=member_comes)
    refuse([sock], counts, 2, 16)
    assert sock.listens is after
