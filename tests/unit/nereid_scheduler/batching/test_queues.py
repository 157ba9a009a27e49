"""Queues in order of arrival and by level."""

from nereid_scheduler.batching.queues import Expiries, Fifo, PriorityQueues
from tests.support.scheduler.samples import entry_of


def test_fifo_keeps_no_heap_of_dead_slots() -> None:
    fifo = Fifo()
    entries = [entry_of() for _ in range(1000)]
    for entry in entries:
        fifo.append(entry)
    for entry in entries[1:]:
        fifo.discard(entry)
    assert len(fifo.items) < 100
    assert fifo.pop(1) == entries[:1]


def test_fifo_keeps_nothing_of_entries_that_are_all_discarded() -> None:
    fifo = Fifo()
    entry = entry_of()
    fifo.append(entry)
    fifo.discard(entry)
    assert not fifo.items
    assert fifo.pop(1) == []


def test_alike_entries_leave_and_the_others_keep_their_order() -> None:
    fifo = Fifo()
    entries = [entry_of(key=key) for key in "abcabca"]
    for entry in entries:
        fifo.append(entry)
    fifo.discard(entries[3])
    assert fifo.extract_alike("a", rows=8, most=1) == [entries[0]]
    assert fifo.extract_alike("a", rows=8, most=8) == [entries[6]]
    assert fifo.pop(8) == [entries[index] for index in (1, 2, 4, 5)]


def test_alike_entries_are_not_looked_for_without_end() -> None:
    fifo = Fifo()
    for entry in (*(entry_of(key="b") for _ in range(300)), entry_of(key="a")):
        fifo.append(entry)
    assert fifo.extract_alike("a", rows=8, most=8) == []
    assert fifo.live == 301


def test_scan_visits_levels_in_order_and_goes_on_where_it_stopped() -> None:
    levels = PriorityQueues()
    assert list(levels.scan()) == []
    low, high, dead = entry_of(level=5), entry_of(level=2), entry_of(level=2)
    for entry in (low, high, dead):
        levels.append(entry)
    assert isinstance(dead.holder, Fifo)
    dead.holder.discard(dead)
    assert list(levels.scan()) == [high, low]
    later = entry_of(level=5)
    assert levels.append(later)
    assert list(levels.scan()) == [later]
    assert not levels.append(entry_of(level=2))
    assert not levels.append(entry_of(level=1))
    levels.rewind()
    assert levels.append(entry_of(level=9))


def test_levels_once_used_are_not_kept() -> None:
    levels = PriorityQueues()
    for level in range(1, 100):
        levels.append(entry_of(level=level))
        levels.append(entry_of(level=level + 1))
        levels.pop(2)
    assert sum(1 for level in range(1, 102) if 2 * level in levels._by_rank) == 1


def test_expiries_return_each_entry_once() -> None:
    expiries, holder = Expiries(), object()
    timeless, entry, gone = (entry_of() for _ in range(3))
    entry.timeout_ns, entry.deadline_ns = 5, 6
    gone.deadline_ns = 4
    entry.holder = holder
    for one in (timeless, entry, gone):
        expiries.push(one, pending=1)
    # Not 4, of one that has left.
    assert expiries.next_ns() == 5
    assert expiries.due(3) == []
    assert expiries.due(6) == [entry]
    assert expiries.next_ns() is None


def test_expiries_forget_departed_entries() -> None:
    expiries = Expiries()
    kept = entry_of()
    kept.holder = expiries
    kept.deadline_ns = 10**9
    expiries.push(kept, pending=1)
    for at_ns in range(1000):
        gone = entry_of()
        gone.deadline_ns = 10**6 + at_ns
        expiries.push(gone, pending=1)
    assert len(expiries._heap) < 100
    assert expiries.due(10**10) == [kept]


def test_expiries_keep_nothing_of_an_idle_queue() -> None:
    """Neither the entries' tensors until their deadlines."""
    expiries, queue = Expiries(), Fifo()
    for deadline_ns in range(50):
        entry = entry_of()
        entry.deadline_ns = deadline_ns
        queue.append(entry)
        expiries.push(entry, pending=50)
    for entry in queue.pop(50):
        entry.holder = None
    assert expiries.next_ns() is None
    assert expiries._heap == []


def test_levels_count_their_delayed_entries() -> None:
    levels = PriorityQueues()
    assert levels.count(3) == 0
    old, fresh = entry_of(level=3), entry_of(level=3)
    for entry in (old, fresh):
        levels.append(entry)
    levels.delay(old)
    assert levels.count(3) == 2
    assert levels.pop(2) == [fresh, old]
    assert levels.count(3) == 0


def test_chosen_entries_leave_several_queues_and_may_come_back() -> None:
    queues = PriorityQueues()
    urgent = [entry_of() for _ in range(3)]
    others = [entry_of(level=2) for _ in range(2)]
    for entry in (*others, *urgent):
        queues.append(entry)
    discarded = urgent.pop(1)
    discarded.holder.discard(discarded)
    assert [*queues.oldest(3)] == [urgent, others[:1]]
    assert [*queues.oldest(2)] == [urgent]
    queues.extract_all([*urgent, others[1]])
    assert [*queues.oldest(9)] == [others[:1]]
    queues.prepend(urgent)
    assert [*queues.oldest(9)] == [urgent, others[:1]]
    assert queues.pop(3) == [*urgent, others[0]]
