"""Bytes held for clients: limits of connections, clients and all."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid.rpc.net.limits.budget import (
    NO_ACCOUNT,
    Account,
    BudgetLimits,
    ByteBudget,
    OverBudgetError,
    account_of,
)

LIMITS = BudgetLimits(total_bytes=400, client_bytes=200, connection_bytes=100)


def over(account: Account, size: int, request_bytes: int = 0) -> OverBudgetError:
    held = account.held_bytes
    with pytest.raises(OverBudgetError) as caught:
        account.charge(size, request_bytes)
    assert account.held_bytes == held
    return caught.value


def test_a_connection_has_a_limit() -> None:
    account = ByteBudget(LIMITS).open_account("a")
    account.charge(60)
    account.charge(40)
    error = over(account, 1)
    assert not error.shared
    assert "100 are held for this connection, and at most 100 may be" in error.message
    account.release(60)
    account.charge(60)


def test_one_request_alone_may_exceed_the_limits_of_its_client() -> None:
    account = ByteBudget(LIMITS).open_account("a")
    account.charge(90)
    account.charge(300, 90)
    assert "this connection" in over(account, 1).message
    assert over(account, 11, 390).shared
    account.release(390)
    account.charge(400)


def test_a_client_has_a_limit_over_its_connections() -> None:
    budget = ByteBudget(LIMITS)
    first, second, third = (budget.open_account("a") for _ in range(3))
    first.charge(100)
    second.charge(100)
    assert "this client" in over(third, 1).message
    budget.open_account("b").charge(50)
    first.release(100)
    third.charge(100)


def test_what_has_no_name_has_no_limit_beside_its_connections() -> None:
    budget = ByteBudget(LIMITS)
    for _ in range(2):
        budget.open_account("").charge(100)
    third = budget.open_account("")
    third.charge(50)
    # Now the three share what is left.
    assert over(third, 1).shared
    fourth = budget.open_account("")
    fourth.charge(10)
    assert over(fourth, 1).shared


def test_all_share_a_limit_with_what_is_pending() -> None:
    pending = 350
    budget = ByteBudget(LIMITS, lambda: pending)
    # It arrives alone.
    alone = budget.open_account("a")
    alone.charge(50)
    error = over(alone, 1, 50)
    assert error.shared
    assert "400 are held for all clients, and at most 400 may be" in error.message
    assert over(budget.open_account("b"), 1).shared
    pending = 300
    other = budget.open_account("b")
    other.charge(16)
    assert over(other, 1).shared


def test_a_quarter_is_left_to_what_has_arrived() -> None:
    budget = ByteBudget(LIMITS)
    for client, size in (("a", 100), ("b", 100), ("c", 50)):
        budget.open_account(client).charge(size)
    other = budget.open_account("d")
    assert "250 are held for all clients, and at most 300 may be" in over(other, 11).message
    other.charge(10)
    other.release(10)
    assert budget.may_add_pending(other, 150)
    assert not budget.may_add_pending(other, 151)


class Clients:
    """Clients that each want all, with requests of one size that are arriving or pending."""

    def __init__(self) -> None:
        self.pending_bytes = 0
        limits = BudgetLimits(total_bytes=40_000, client_bytes=20_000, connection_bytes=40_000)
        self.budget = ByteBudget(limits, lambda: self.pending_bytes)

    def arrive(self, account: Account, size: int) -> int:
        """Begin requests until one is refused; the bytes that have arrived."""
        before = account.held_bytes
        with contextlib.suppress(OverBudgetError):
            while True:
                account.charge(size)
        return account.held_bytes - before

    def pend(self, account: Account, size: int) -> int:
        """Add pending requests until one is refused; their bytes."""
        added = 0
        with contextlib.suppress(OverBudgetError):
            while True:
                account.charge_pending(size)
                if not self.budget.may_add_pending(account, size):
                    account.release_pending(size)
                    break
                self.pending_bytes += size
                added += size
        return added


@pytest.mark.parametrize("hostile", [1, 2, 3, 10, 30])
@pytest.mark.parametrize("ways", ["arrive", "pend", "both", "unread"])
def test_no_number_of_clients_keeps_out_another_one(hostile: int, ways: str) -> None:
    clients = Clients()
    for number in range(hostile):
        account = clients.budget.open_account(f"hostile {number}")
        if ways == "unread":
            account.set_unread(30_000)
        if ways in {"arrive", "both"}:
            clients.arrive(account, 100)
        if ways in {"pend", "both"}:
            clients.pend(account, 100)
    least = 5_000 // (hostile + 2) ** 2
    assert clients.arrive(clients.budget.open_account("honest"), 1) >= least
    assert clients.pend(clients.budget.open_account("also honest"), 1) >= least
    assert clients.budget.held_bytes + clients.pending_bytes <= 40_000


def test_closed_accounts_are_forgotten_and_may_still_release() -> None:
    budget = ByteBudget(LIMITS)
    first, second = budget.open_account("a"), budget.open_account("a")
    first.charge(10)
    first.close()
    first.close()
    assert budget.clients == 1
    second.close()
    assert budget.clients == 0
    assert budget.held_bytes == 10
    first.release(10)
    assert budget.held_bytes == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 120), st.booleans()), max_size=40))
def test_sums_agree_whatever_happens(steps: list[tuple[int, int, bool]]) -> None:
    budget = ByteBudget(LIMITS)
    accounts = [budget.open_account("ab"[number % 2]) for number in range(6)]
    for number, size, release in steps:
        account = accounts[number]
        if release:
            account.release(min(size, account.held_bytes))
            continue
        before = budget.held_bytes
        try:
            account.charge(size)
        except OverBudgetError:
            assert budget.held_bytes == before
    assert budget.held_bytes == sum(each.held_bytes for each in accounts)


def test_pending_requests_count_for_their_client_alone() -> None:
    """The budget's pending_bytes has them all."""
    budget = ByteBudget(LIMITS)
    first, second = budget.open_account("a"), budget.open_account("a")
    first.charge_pending(500)
    assert budget.held_bytes == 0
    with pytest.raises(OverBudgetError, match="500 are held for this client"):
        second.charge_pending(1)
    assert "this client" in over(second, 1).message
    budget.open_account("b").charge_pending(200)
    first.release_pending(500)
    second.charge_pending(200)
    budget.open_account("").charge_pending(300)


def test_unread_responses_are_counted_and_keep_their_client_from_beginning_more() -> None:
    budget = ByteBudget(LIMITS)
    first, second = budget.open_account("a"), budget.open_account("a")
    first.set_unread(150)
    second.set_unread(50)
    second.check_unread()
    second.set_unread(51)
    with pytest.raises(OverBudgetError, match="201 are held for this client, and at most 200"):
        first.check_unread()
    assert budget.unread_bytes == 201
    other = budget.open_account("b")
    other.check_unread()
    assert not budget.may_add_pending(other, 200)
    assert budget.may_add_pending(other, 199)
    assert "this client" in over(second, 1).message
    first.close()
    second.set_unread(0)
    first.set_unread(70)
    assert budget.unread_bytes == 0


def test_unread_responses_leave_a_part_for_the_requests_of_others() -> None:
    """Responses are never refused: those of one client may be more than all limits."""
    budget = ByteBudget(LIMITS)
    limits = budget.limits
    reader, other = budget.open_account("a"), budget.open_account("b")
    reader.set_unread(100 * limits.total_bytes)
    left = limits.total_bytes - budget.largest_held_bytes
    assert budget.may_add_pending(other, left)
    assert not budget.may_add_pending(other, left + 1)
    # Its reader has no share of the last part.
    assert budget.may_add_pending(reader, left // 2)
    assert not budget.may_add_pending(reader, left // 2 + 1)
    # Likewise while requests arrive.
    other.charge(left // 2)
    assert over(reader, 1).message.endswith(f"at most {limits.client_bytes} may be")


def test_what_has_no_name_may_leave_anything_unread() -> None:
    account = ByteBudget(LIMITS).open_account("")
    account.set_unread(300)
    account.check_unread()


def test_an_account_that_counts_nothing_refuses_nothing() -> None:
    account = account_of(None)
    assert account is NO_ACCOUNT
    account.charge(1 << 40)
    account.charge_pending(1 << 40)
    account.set_unread(1 << 40)
    account.check_unread()
    assert (account.held_bytes, account.unread_bytes) == (0, 0)
    account.release(1 << 40)
    account.release_pending(1 << 40)
    account.close()
    assert account.client == ""
    assert account.owner is account.account is account
