"""Bytes held for clients: limits of connections, clients and all."""

from __future__ import annotations

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
    budget.open_account("b").charge(100)
    first.release(100)
    third.charge(100)


def test_what_has_no_name_has_no_limit_beside_its_connections() -> None:
    budget = ByteBudget(LIMITS)
    for _ in range(3):
        budget.open_account("").charge(100)
    assert over(budget.open_account(""), 1).shared


def test_all_share_a_limit_with_what_is_pending() -> None:
    pending = 350
    budget = ByteBudget(LIMITS, lambda: pending)
    budget.open_account("a").charge(50)
    error = over(budget.open_account("b"), 1)
    assert error.shared
    assert "400 are held for all clients, and at most 400 may be" in error.message
    pending = 300
    budget.open_account("b").charge(50)


def test_a_quarter_is_left_to_what_has_arrived() -> None:
    budget = ByteBudget(LIMITS)
    for client in ("a", "b", "c"):
        budget.open_account(client).charge(100)
    assert "at most 300" in over(budget.open_account("d"), 1).message
    assert budget.may_add_pending(100)
    assert not budget.may_add_pending(101)


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
    budget.open_account("b").check_unread()
    assert not budget.may_add_pending(200)
    assert budget.may_add_pending(199)
    assert "this client" in over(second, 1).message
    first.close()
    second.set_unread(0)
    first.set_unread(70)
    assert budget.unread_bytes == 0


def test_unread_responses_leave_a_part_for_the_requests_of_others() -> None:
    """Responses are never refused: those of one client may be more than all limits."""
    budget = ByteBudget(LIMITS)
    limits = budget.limits
    budget.open_account("a").set_unread(100 * limits.total_bytes)
    left = limits.total_bytes - budget.largest_held_bytes
    assert budget.may_add_pending(left)
    assert not budget.may_add_pending(left + 1)
    # Likewise while a request arrives; the two clients have equal parts.
    other = budget.open_account("b")
    other.charge(left // 2)
    assert over(other, 1).shared
    assert over(budget.open_account("a"), 1).message.endswith(
        f"at most {limits.client_bytes} may be"
    )


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
