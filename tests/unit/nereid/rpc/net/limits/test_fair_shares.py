"""How clients share the last part of a limit."""

from __future__ import annotations

import math

import pytest

from nereid.rpc.net.limits.fair_shares import may_have


@pytest.mark.parametrize(
    ("amount", "left", "clients", "allowed"),
    [
        (700, 100, 9, True),
        (700, 99, 1, False),
        (99, 99, 1, True),
        (33, 99, 3, True),
        (34, 99, 3, False),
        (0, 0, 3, True),
        (1, 0, 3, False),
        (0, -1, 3, False),
    ],
)
def test_the_last_part_is_shared(amount: int, left: int, clients: int, allowed: bool) -> None:
    assert may_have(amount, left=left, limit=800, clients=clients) is allowed


def test_no_limit_is_never_reached() -> None:
    assert may_have(1 << 60, left=math.inf, limit=math.inf, clients=1000)


def test_clients_one_after_another_leave_a_part_to_the_next() -> None:
    left = 99_999
    for clients in range(1, 100):
        amount = left // (clients + 1)
        assert may_have(amount, left=left - amount, limit=800_000, clients=clients)
        assert not may_have(amount + 2, left=left - amount - 2, limit=800_000, clients=clients)
        left -= amount
        assert left >= 99_999 // (clients + 1) - clients
