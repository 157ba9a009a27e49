from __future__ import annotations

from services.scheduler.ordering import ReplyOrder


def test_answers_leave_in_the_order_of_arrival() -> None:
    order: ReplyOrder[str] = ReplyOrder()
    for entry in (1, 2, 3):
        order.admit(entry)
    assert order.settle(2, "two") == []
    assert order.settle(1, "one") == ["one", "two"]
    assert len(order) == 1
    assert order.settle(3, "three") == ["three"]
    assert len(order) == 0


def test_who_needs_no_answer_holds_nobody_up() -> None:
    order: ReplyOrder[str] = ReplyOrder()
    for entry in (1, 2):
        order.admit(entry)
    assert order.settle(2, "two") == []
    assert order.settle(1, None) == ["two"]
