"""Answers held back until those before them have left."""

from __future__ import annotations

from nereid.services.scheduler.requests.response_order import ReplyOrder


def test_responses_leave_in_the_order_of_arrival() -> None:
    order: ReplyOrder[str] = ReplyOrder()
    for entry in (1, 2, 3):
        order.admit(entry)
    assert order.settle(2, "two") == []
    assert order.settle(1, "one") == ["one", "two"]
    assert len(order) == 1
    assert order.settle(3, "three") == ["three"]
    assert len(order) == 0


def test_who_needs_no_response_holds_nobody_up() -> None:
    order: ReplyOrder[str] = ReplyOrder()
    for entry in (1, 2):
        order.admit(entry)
    assert order.settle(2, "two") == []
    assert order.settle(1, None) == ["two"]


def test_several_responses_to_an_entry_stay_together() -> None:
    order: ReplyOrder[str] = ReplyOrder()
    for entry in (1, 2, 3):
        order.admit(entry)
    assert order.add(2, "two a") == []
    assert order.add(1, "one a") == ["one a"]
    assert order.add(3, "three a") == []
    # What the next one has said already follows at once.
    assert order.settle(1, "one b") == ["one b", "two a"]
    assert order.add(2, "two b") == ["two b"]
    assert order.settle(3, None) == []
    assert order.settle(2, None) == ["three a"]
    assert len(order) == 0
