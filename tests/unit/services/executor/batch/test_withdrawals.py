"""Either side wins, never both."""

import threading

from nereid.services.executor.batch.withdrawals import Withdrawals


def test_a_batch_that_has_not_begun_can_be_withdrawn() -> None:
    withdrawals = Withdrawals()
    assert withdrawals.begin(1)
    assert withdrawals.withdraw(2)
    assert not withdrawals.begin(2)
    assert withdrawals.begin(3)


def test_a_batch_that_has_begun_cannot_be_withdrawn() -> None:
    withdrawals = Withdrawals()
    assert withdrawals.begin(0)  # a warm-up has no number
    assert withdrawals.begin(1)
    assert not withdrawals.withdraw(1)
    assert withdrawals.begin(2)


def test_in_a_race_a_batch_is_executed_or_withdrawn() -> None:
    withdrawals = Withdrawals()
    outcomes: dict[int, list[bool]] = {number: [] for number in range(1, 2001)}
    start = threading.Barrier(2)

    def withdraw() -> None:
        start.wait()
        for number, outcome in outcomes.items():
            outcome.append(withdrawals.withdraw(number))

    thread = threading.Thread(target=withdraw)
    thread.start()
    start.wait()
    begun = {number: withdrawals.begin(number) for number in outcomes}
    thread.join()
    # One batch waits at a time: a later withdrawal forgets an earlier one.
    last = max((number for number, (gone,) in outcomes.items() if gone), default=None)
    assert all(begun[number] != gone for number, (gone,) in outcomes.items() if number == last)
    assert all(begun[number] for number, (gone,) in outcomes.items() if not gone)
