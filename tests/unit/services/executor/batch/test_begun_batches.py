"""Either side wins, never both."""

import threading

from nereid.services.executor.batch.begun_batches import BegunBatches


def test_a_batch_that_has_not_begun_can_be_withdrawn() -> None:
    batches = BegunBatches()
    assert batches.begin(1)
    assert batches.withdraw(2)
    assert not batches.begin(2)
    assert batches.begin(3)


def test_a_batch_that_has_begun_cannot_be_withdrawn() -> None:
    batches = BegunBatches()
    assert batches.begin(0)  # a warm-up has no number
    assert batches.begin(1)
    assert not batches.withdraw(1)
    assert batches.begin(2)


def test_in_a_race_a_batch_is_executed_or_withdrawn() -> None:
    batches = BegunBatches()
    outcomes: dict[int, list[bool]] = {number: [] for number in range(1, 2001)}
    start = threading.Barrier(2)

    def withdraw() -> None:
        start.wait()
        for number, outcome in outcomes.items():
            outcome.append(batches.withdraw(number))

    thread = threading.Thread(target=withdraw)
    thread.start()
    start.wait()
    begun = {number: batches.begin(number) for number in outcomes}
    thread.join()
    # One batch waits at a time: a later withdrawal forgets an earlier one.
    last = max((number for number, (gone,) in outcomes.items() if gone), default=None)
    assert all(begun[number] != gone for number, (gone,) in outcomes.items() if number == last)
    assert all(begun[number] for number, (gone,) in outcomes.items() if not gone)
