"""How many of the pending requests one client, or one model, may have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Any, cast

import pytest

from nereid.mesh_routing.router.pending_requests import PendingRequest
from nereid.rpc.net.limits.budget import BudgetLimits, ByteBudget
from nereid_gateway.core.client_request import ClientRequest
from nereid_gateway.core.pending_shares import PendingShares
from tests.support.forms import pure_only

# Requests that are pending for nobody.
pytestmark = pure_only


class Gateway:
    """Keeps requests pending as an Upstream does."""

    def __init__(self, limit: int) -> None:
        self.shares = PendingShares(limit, lambda head: head.decode())
        self.pending: dict[int, PendingRequest] = {}
        self.last = 0

    def add(self, sender: Hashable, model: str) -> bool:
        request = ClientRequest(0, model.encode(), [])
        request.sender = sender
        self.last += 1
        if len(self.pending) >= self.shares.always_admitted_below and not self.shares.may_add(
            request, self.last, self.pending.values()
        ):
            return False
        self.pending[self.last] = PendingRequest(cast("Any", None), request, _ignore, 0)
        return True

    def fill(self, sender: Hashable, model: str) -> int:
        """Add until one is refused."""
        count = 0
        while self.add(sender, model):
            count += 1
        return count

    def end(self, sender: Hashable, count: int) -> None:
        """The first requests of a client are completed."""
        ended = [number for number, each in self.pending.items() if _sender_of(each) == sender]
        for number in ended[:count]:
            del self.pending[number]

    def count(self, model: str) -> int:
        return sum(each.request.head.decode() == model for each in self.pending.values())


def _sender_of(pending: PendingRequest) -> Hashable:
    request = cast("ClientRequest", pending.request)
    sender: Hashable = request.sender
    return sender


def _ignore(_: object) -> None:
    """A response."""


@pytest.mark.parametrize(("limit", "alone"), [(1, 1), (2, 2), (8, 8), (9, 8), (90, 79), (900, 790)])
def test_one_client_alone_may_have_nearly_all(limit: int, alone: int) -> None:
    gateway = Gateway(limit)
    assert gateway.fill("a", "m") == alone


@pytest.mark.parametrize("sender", ["a", "b"], ids=["same client", "another client"])
def test_another_model_gets_in_at_once(sender: str) -> None:
    gateway = Gateway(900)
    gateway.fill("a", "hot")
    assert gateway.fill(sender, "cold") > 80
    assert len(gateway.pending) < 900


def test_another_client_of_the_same_model_gets_in_at_once() -> None:
    gateway = Gateway(900)
    gateway.fill("a", "hot")
    assert gateway.fill("b", "hot") > 8
    # And has more as the first one's requests end.
    gateway.end("a", 200)
    assert gateway.fill("b", "hot") > 100


def test_all_clients_of_a_model_together_leave_place_for_others() -> None:
    gateway = Gateway(900)
    for number in range(100):
        gateway.fill(f"client{number}", "hot")
    assert gateway.count(model="hot") <= 800
    assert gateway.fill("client0", "cold") > 80


@pytest.mark.parametrize(
    "keys",
    [
        [("a", "m"), ("b", "n"), ("c", "o")],
        [("a", "m"), ("a", "n"), ("a", "o")],
        [("a", "m"), ("b", "m"), ("c", "m")],
    ],
    ids=["both", "models", "clients"],
)
def test_shares_converge_to_equal_parts(keys: list[tuple[str, str]]) -> None:
    gateway = Gateway(900)
    gateway.fill(*keys[0])
    # Each request that ends makes place for one of three clients, who all want more than there is.
    for turn in range(3000):
        oldest = min(gateway.pending)
        del gateway.pending[oldest]
        for sender, model in keys[turn % 3 :] + keys[: turn % 3]:
            gateway.add(sender, model)
    by = Counter(
        (_sender_of(each), each.request.head.decode()) for each in gateway.pending.values()
    )
    assert sorted(by) == keys
    # A census may be old by a sixteenth of the limit.
    assert min(by.values()) > max(by.values()) - 900 / 16 - 10
    assert by.total() > 780


def test_requests_that_were_added_uncontended_count() -> None:
    gateway = Gateway(90)
    for _ in range(3):
        assert gateway.fill("a", "m") > 0
        assert gateway.count(model="m") == 79
        # Below the contended part again, and up anew.
        gateway.end("a", 40)


def test_connections_of_one_client_are_one() -> None:
    budget = ByteBudget(BudgetLimits(total_bytes=1, client_bytes=1, connection_bytes=1))
    first, second = budget.open_account("10.0.0.1"), budget.open_account("10.0.0.1")
    other, unnamed = budget.open_account("10.0.0.2"), budget.open_account("")
    gateway = Gateway(900)
    for _ in range(400):
        gateway.add(first, "m")
    assert gateway.fill(second, "m") == 390
    assert gateway.add(other, "m")
    assert gateway.add(unnamed, "m")
    assert first.owner is second.owner is not other.owner


def test_nothing_is_added_beyond_the_limit() -> None:
    gateway = Gateway(9)
    for number in range(20):
        gateway.add(f"client{number}", f"model{number}")
    assert len(gateway.pending) == 9
