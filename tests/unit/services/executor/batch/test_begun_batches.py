"""Either side wins, never both."""

import threading

import pytest

from nereid.core.errors import ProtocolError
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
    assert batches.begin(0)
    assert batches.begin(1)
    assert not batches.withdraw(1)
    assert batches.begin(2)


def test_several_withdrawn_batches_may_lie_unread() -> None:
    batches = BegunBatches()
    assert batches.begin(1)
    assert batches.withdraw(2)
    assert batches.withdraw(4)
    assert [batches.begin(number) for number in (2, 3, 4, 5)] == [False, True, False, True]


def test_a_withdrawn_batch_that_was_lost_with_its_stream_is_forgotten() -> None:
    batches = BegunBatches()
    assert batches.withdraw(2)
    assert batches.begin(3)
    assert batches.begin(4)


@pytest.mark.parametrize("number", [1, 2])
def test_batches_out_of_order_break_the_protocol(number: int) -> None:
    batches = BegunBatches()
    assert batches.begin(2)
    with pytest.raises(ProtocolError, match=f"batch {number} comes after batch 2"):
        batches.begin(number)


def test_in_a_race_a_batch_is_executed_or_withdrawn() -> None:
    batches = BegunBatches()
    withdrawn: dict[int, bool] = {}
    start = threading.Barrier(2)

    def withdraw() -> None:
        start.wait()
        for number in range(1, 2001):
            withdrawn[number] = batches.withdraw(number)

    thread = threading.Thread(target=withdraw)
    thread.start()
    start.wait()
    begun = {number: batches.begin(number) for number in range(1, 2001)}
    thread.join()
    assert all(begun[number] != withdrawn[number] for number in begun)
