"""Who is refused in place of whom."""

from __future__ import annotations

from dataclasses import dataclass, field

from nereid_scheduler.batching.policies.client_shares import ClientShares
from nereid_scheduler.core.requests.entry import Entry
from tests.support.scheduler.samples import entry_of


def entry_from(client: str, rows: int = 1, level: int = 1) -> Entry:
    entry = entry_of(rows, level=level)
    entry.request.sequence_owner = client
    return entry


@dataclass
class Queue:
    """Clients' entries, by the client and in order."""

    shares: ClientShares = field(default_factory=ClientShares)

    def add(self, client: str, *rows: int, level: int = 1, is_kept: bool = False) -> list[Entry]:
        entries = [entry_from(client, each, level) for each in rows]
        for entry in entries:
            self.shares.add(entry, is_kept=is_kept)
        return entries

    def displaced(
        self, client: str, rows: int = 1, *, capacity: float = 0, level: int = 1
    ) -> list[Entry] | None:
        return self.shares.displaced_by(entry_from(client, rows, level), capacity)


class TestDisplaced:
    def test_a_client_on_its_own_displaces_nothing(self) -> None:
        queue = Queue()
        assert queue.displaced("a", capacity=100) is None
        queue.add("a", 1, 1)
        assert queue.displaced("a", capacity=100) is None

    def test_the_newest_of_who_has_most_is_displaced(self) -> None:
        queue = Queue()
        first, _, last = queue.add("hog", 1, 1, 1)
        queue.add("b", 1, 1)
        assert queue.displaced("c") == [last]
        queue.shares.remove(last)
        queue.shares.remove(first)
        # The others have as many as it would.
        assert queue.displaced("b") is None

    def test_as_many_rows_as_the_new_one_has(self) -> None:
        queue = Queue()
        *_, third, last = queue.add("hog", 4, 4, 4, 4)
        assert queue.displaced("a", 6) == [last, third]
        # More would leave the other one with less than it.
        assert queue.displaced("a", 15) is None
        assert queue.displaced("a", 15, capacity=30) == [last]

    def test_nobody_displaces_its_own(self) -> None:
        queue = Queue()
        queue.add("hog", 1, 1, 1)
        queue.add("a", 1)
        assert queue.displaced("hog") is None

    def test_less_urgent_ones_are_in_nobodys_way(self) -> None:
        queue = Queue()
        (urgent,) = queue.add("hog", 1)
        queue.add("hog", 1, 1, level=2)
        assert queue.displaced("a") == [urgent]

    def test_neither_kept_nor_executing_ones_are_displaced(self) -> None:
        queue = Queue()
        executing, queued = queue.add("hog", 1, 1)
        queue.add("hog", 1, is_kept=True)
        queue.shares.begin([executing])
        assert queue.displaced("a") == [queued]
        queue.shares.begin([queued])
        assert queue.displaced("a") is None

    def test_beside_what_executes_each_client_has_an_equal_share_of_the_capacity(self) -> None:
        queue = Queue()
        queue.shares.begin(queue.add("hog", 64))
        assert queue.displaced("a", capacity=2) == []
        assert queue.displaced("a", 2, capacity=3) is None
        queue.add("b", 1)
        assert queue.displaced("a", capacity=2) is None
        assert queue.displaced("a", capacity=3) == []

    def test_a_client_without_entries_has_no_share(self) -> None:
        queue = Queue()
        executing = queue.add("hog", 64)
        queue.shares.begin(executing)
        queue.shares.remove(executing[0])
        assert queue.displaced("a", capacity=100) is None


class TestLast:
    def test_they_are_of_who_has_most_by_then(self) -> None:
        queue = Queue()
        a_1, a_2, a_3 = queue.add("a", 1, 1, 1)
        b_1, b_2 = queue.add("b", 2, 2)
        assert queue.shares.last_entries(3, 0) == [b_2, a_3, a_2]
        assert queue.shares.last_entries(100, 0) == [b_2, a_3, a_2, b_1, a_1]

    def test_each_client_beside_others_keeps_its_share(self) -> None:
        queue = Queue()
        hogs = queue.add("hog", *[1] * 4)
        queue.add("a", 1, 1)
        assert queue.shares.last_entries(100, 4) == [hogs[3], hogs[2]]
        queue = Queue()
        hogs = queue.add("hog", *[1] * 4)
        assert queue.shares.last_entries(100, 4) == [*reversed(hogs)]

    def test_the_least_urgent_first(self) -> None:
        queue = Queue()
        (second,) = queue.add("a", 1, level=2)
        (urgent,) = queue.add("a", 1)
        queue.add("a", 1, is_kept=True)
        assert queue.shares.last_entries(9, 0) == [second, urgent]


def test_rows_that_wait_are_counted() -> None:
    queue = Queue()
    first, second = queue.add("a", 2, 3)
    # A request without rows counts as one.
    (empty,) = queue.add("b", 0)
    assert queue.shares.queued_rows == 6
    queue.shares.begin([first])
    assert queue.shares.queued_rows == 4
    for entry in (first, second, empty):
        queue.shares.remove(entry)
    assert queue.shares.queued_rows == 0


def test_what_was_queued_beyond_the_target_is_forgotten_with_the_entry() -> None:
    shares, entry = ClientShares(), entry_from("a")
    shares.add(entry, exceeds_target=True)
    assert shares.exceeds_target(entry)
    shares.remove(entry)
    assert not shares.exceeds_target(entry)
