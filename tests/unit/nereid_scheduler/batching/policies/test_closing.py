"""Where a batch ends, and when it closes: requests in the queue and limits in, decisions out."""

import re

import pytest

from nereid_scheduler.batching.policies.closing import (
    NO_CANDIDATES,
    Candidates,
    FormedBatch,
    close,
    read,
    takes_along,
)
from nereid_scheduler.batching.policies.sizing import MeasuredSizing, Sizing
from nereid_scheduler.batching.times.batch_times import BatchTimes
from nereid_scheduler.core.instances.router import Router
from nereid_scheduler.core.requests.entry import Batch, Entry
from tests.support.scheduler.batching import execution
from tests.support.scheduler.samples import entry_of

MS = 1_000_000
MAX_SIZE = 8
# Number of candidates that leave, rows of the batch, reason, whether entries may still join.
Decision = tuple[int, int, str, bool] | None


def entries_of(text: str) -> list[Entry]:
    """Return an entry for each shape, with the number of rows behind it or one, queued at 0."""
    return [entry_of(int(rows or 1), key=key) for key, rows in re.findall(r"(\D)(\d*)", text)]


def formed_of(text: str, reason: str = "immediate") -> FormedBatch:
    formed = FormedBatch(text[0], entries_of(text))
    formed.size = sum(entry.valid.batch_size for entry in formed.entries)
    formed.reason = reason
    return formed


def sizing_of(preferred: tuple[int, ...], delay_ns: int, limit: int) -> Sizing:
    """Return limits of rows; `limit` requests are the share of each of two instances."""
    if not limit:
        return Sizing(MAX_SIZE, delay_ns, preferred)
    router: Router[int] = Router()
    for number in range(2):
        router.add_instance(number)
    times = BatchTimes()
    times.record(0, Batch(entries_of("z"), 1, "full"), execution(300 * MS), waited=False)
    return MeasuredSizing(MAX_SIZE, router, times, range(2 * limit))


def decide(
    queued: str, growing: str, preferred: tuple[int, ...], delay_ns: int, now_ns: int, limit: int
) -> Decision:
    sizing = sizing_of(preferred, delay_ns, limit)
    found = NO_CANDIDATES
    if growing:
        batch = formed_of(growing)
        found = Candidates(batch, 0, batch.size, batch.key)
    closing = close(read(found, entries_of(queued), sizing), sizing, now_ns)
    if closing is None:
        return None
    return closing.count, closing.size, closing.reason, closing.grows


@pytest.mark.parametrize(
    ("queued", "growing", "preferred", "limit", "decision"),
    [
        ("", "", (8,), 0, None),
        ("", "a", (8,), 0, None),
        ("aaa", "", (8,), 0, (3, 3, "immediate", True)),
        ("aaa", "aa", (8,), 0, (3, 5, "immediate", True)),
        ("a8a", "", (8,), 0, (1, 8, "full", False)),
        ("a5a5", "", (8,), 0, (1, 5, "full", False)),
        ("a5", "a5", (8,), 0, (0, 5, "full", False)),
        ("a3a3", "", (4,), 0, (1, 3, "full", False)),
        ("a3", "a2", (4,), 0, (1, 5, "preferred", False)),
        ("aaaaa", "", (2, 4), 0, (4, 4, "preferred", False)),
        ("aaa", "", (2, 4), 0, (2, 2, "preferred", False)),
        ("aab", "", (8,), 0, (2, 2, "shape", False)),
        ("b", "aa", (8,), 0, (0, 2, "shape", False)),
        ("aaab", "", (2, 4), 0, (2, 2, "preferred", False)),
        ("aaa", "", (8,), 2, (2, 2, "shared", False)),
        ("aaa", "a", (8,), 3, (2, 3, "shared", False)),
        ("a", "aaa", (8,), 2, (0, 3, "shared", False)),
    ],
)
def test_without_a_delay_the_batch_is_what_is_queued(
    queued: str, growing: str, preferred: tuple[int, ...], limit: int, decision: Decision
) -> None:
    assert decide(queued, growing, preferred, 0, 0, limit) == decision


@pytest.mark.parametrize(
    ("queued", "growing", "preferred", "now_ns", "decision"),
    [
        ("aaa", "", (8,), 9, None),
        ("aaa", "", (8,), 10, (3, 3, "delay", True)),
        ("aaa", "", (2, 8), 9, (2, 2, "preferred", True)),
        ("aaa", "", (2, 8), 10, (3, 3, "delay", True)),
        ("aaaa", "", (4,), 9, (4, 4, "preferred", True)),
        ("aaaa", "", (4,), 10, (4, 4, "preferred", False)),
        ("a8", "", (8,), 9, (1, 8, "full", True)),
        ("a5a5", "", (8,), 9, (1, 5, "full", False)),
        ("aab", "", (8,), 9, (2, 2, "shape", False)),
        ("a", "a3", (4, 8), 9, (1, 4, "preferred", True)),
        # The growing batch may leave at any moment.
        ("a", "a3", (8,), 9, (1, 4, "immediate", True)),
        # Its size is preferred, so it grows only to another preferred size, or after the delay.
        ("a", "a2", (2, 8), 9, None),
        ("a", "a2", (2, 8), 10, (1, 3, "delay", True)),
    ],
)
def test_with_a_delay_of_ten_it_waits_for_a_preferred_size(
    queued: str, growing: str, preferred: tuple[int, ...], now_ns: int, decision: Decision
) -> None:
    assert decide(queued, growing, preferred, 10, now_ns, 0) == decision


def test_candidates_are_read_once_and_the_oldest_counts() -> None:
    sizing = Sizing(MAX_SIZE, 10, (8,))
    entries = entries_of("aaa")
    for entry, queued_ns in zip(entries, (7, 3, 5), strict=True):
        entry.enqueued_ns = queued_ns
    found = read(read(NO_CANDIDATES, entries[:1], sizing), entries[1:], sizing)
    assert (found.count, found.size, found.key, found.oldest_ns) == (3, 3, "a", 3)
    assert close(found, sizing, 12) is None
    assert close(found, sizing, 13) is not None
    assert NO_CANDIDATES.count == 0


@pytest.mark.parametrize(
    ("batch", "following", "sealed", "now_ns", "taken"),
    [
        ("a4", "a4", "", 11, True),
        ("a4", "a4", "", 10, False),
        ("a4", "a5", "", 11, False),
        ("a4", "b4", "", 11, False),
        ("a4", "a4", "batch", 11, False),
        ("a4", "a4", "following", 11, False),
    ],
)
def test_a_batch_takes_the_next_one_along_after_its_delay(
    batch: str, following: str, sealed: str, now_ns: int, taken: bool
) -> None:
    one, other = formed_of(batch), formed_of(following)
    one.sealed, other.sealed = sealed == "batch", sealed == "following"
    assert takes_along(one, other, Sizing(MAX_SIZE, 10), now_ns) is taken
