"""Responses held back until those of earlier requests are sent."""

from nereid_scheduler.core.requests.response_order import ResponseOrder


def test_responses_leave_in_the_order_of_arrival() -> None:
    order: ResponseOrder[str] = ResponseOrder()
    for entry in (1, 2, 3):
        order.append_request(entry)
    assert order.end_request(2, "two") == []
    assert order.end_request(1, "one") == ["one", "two"]
    assert len(order) == 1
    assert order.end_request(3, "three") == ["three"]
    assert len(order) == 0


def test_a_cancelled_request_delays_no_other() -> None:
    order: ResponseOrder[str] = ResponseOrder()
    for entry in (1, 2):
        order.append_request(entry)
    assert order.end_request(2, "two") == []
    assert order.end_request(1, None) == ["two"]


def test_responses_to_one_entry_are_not_interleaved() -> None:
    order: ResponseOrder[str] = ResponseOrder()
    for entry in (1, 2, 3):
        order.append_request(entry)
    assert order.order_response(2, "two a") == []
    assert order.order_response(1, "one a") == ["one a"]
    assert order.order_response(3, "three a") == []
    # What the next request has held follows at once.
    assert order.end_request(1, "one b") == ["one b", "two a"]
    assert order.order_response(2, "two b") == ["two b"]
    assert order.end_request(3, None) == []
    assert order.end_request(2, None) == ["three a"]
    assert len(order) == 0
