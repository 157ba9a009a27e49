"""Large outputs of a worker that serves its instance's stream itself."""

import queue
import threading
from typing import Any

import pytest

from nereid.shm.mappings import exists, read
from nereid.shm.segments import Segment, SegmentPool
from nereid_executor.backends.python.direct.output_segments import OutputSegments
from nereid_executor.backends.python.worker_site.nereid_worker.protocol.wire import (
    WireError,
)

SIZE = 1 << 17


class Executor:
    """Responds with segments of a pool of this limit, as a supervisor does."""

    def __init__(
        self, limit_bytes: int = 1 << 24, *, in_reader_thread: bool = False, **options: Any
    ) -> None:
        # The sizes, and whether the worker keeps the segment.
        self.asked: list[tuple[int, bool]] = []
        self.pool = SegmentPool(limit_bytes, writable=True)
        self.returned = threading.Event()
        self.segments = OutputSegments(
            self._on_request, lambda: in_reader_thread, self._on_return, **options
        )

    def _on_request(self, request: tuple[int, int, bool]) -> None:
        number, size_bytes, granted = request
        self.asked.append((size_bytes, granted))
        allocate = self.pool.grant_segment if granted else self.pool.acquire_segment
        segment = allocate(size_bytes, self)
        buffer = None if segment is None else [*segment.range(0, segment.size_bytes)]
        self.segments.on_output_buffer(number, buffer)

    def _on_return(self, segment_names: list[str]) -> None:
        for name in segment_names:
            self.pool.discard_granted(name, self)
        self.returned.set()

    def write(self, *outputs: bytes) -> str:
        """The name of the segment that they are in; empty: they are sent inline."""
        buffer, placed = self.segments.write(outputs)
        if buffer is None:
            assert placed == outputs
            return ""
        found = [read(buffer._replace(offset=each.offset, size_bytes=each.size)) for each in placed]
        assert found == [*outputs]
        return buffer.segment_name


def test_outputs_lie_side_by_side_in_the_segment() -> None:
    executor = Executor()
    assert executor.write(b"a" * 100, b"b" * (1 << 16))
    assert executor.asked == [(128 + (1 << 16), True)]


def test_a_segment_is_used_again_once_its_response_was_read() -> None:
    executor = Executor()
    first = executor.write(b"a" * SIZE)
    second = executor.write(b"b" * SIZE)
    assert len({first, second}) == 2
    executor.pool.free_segment(first)
    assert executor.write(b"c" * (SIZE - 1000)) == first
    executor.pool.free_segment(second)
    assert executor.write(b"d" * SIZE) == second
    assert executor.asked == [(SIZE, True)] * 2, "no more than are in use at a time are asked for"


def test_a_discarded_segment_is_not_used_again() -> None:
    executor = Executor(max_granted=1)
    first = executor.write(b"a" * SIZE)
    executor.pool.discard(first)
    assert executor.write(b"b" * SIZE) not in ("", first)
    assert executor.pool.used_count == 1


def test_more_than_are_granted_at_a_time_get_segments_of_their_own() -> None:
    executor = Executor(max_granted=1)
    first = executor.write(b"a" * SIZE)
    second = executor.write(b"b" * SIZE)
    assert second
    assert executor.asked == [(SIZE, True), (SIZE, False)]
    executor.pool.free_segment(second)
    assert executor.pool.used_count == 1
    # One that is free and does not fit makes way.
    executor.pool.free_segment(first)
    assert executor.write(b"c" * (4 * SIZE))
    assert executor.asked[2:] == [(4 * SIZE, True)]
    assert not exists(first)


def test_very_large_outputs_get_a_segment_of_their_own() -> None:
    executor = Executor()
    assert executor.write(b"a" * (1 << 21))
    assert executor.asked == [(1 << 21, False)]


def test_idle_segments_are_returned() -> None:
    executor = Executor(idle_s=0.01)
    idle, lent = executor.write(b"a" * SIZE), executor.write(b"b" * SIZE)
    executor.pool.free_segment(idle)
    assert executor.returned.wait(20)
    assert not exists(idle)
    assert exists(lent), "its response may still be read"
    executor.segments.close()


def test_a_finaliser_does_not_get_the_segment_that_is_being_chosen() -> None:
    """It may interrupt the choice at any place, in the same thread."""
    inner: list[Any] = []
    taken: list[str] = []

    executor = Executor()
    on_request = executor.segments._request_buffer

    def interrupted(request: tuple[int, int, bool]) -> None:
        if not inner:
            inner.append(None)
            taken.append(executor.write(b"b" * SIZE))
        on_request(request)

    executor.segments._request_buffer = interrupted
    first = executor.write(b"a" * SIZE)
    assert taken
    assert first not in ("", *taken)


@pytest.mark.parametrize(
    ("executor", "asks"),
    [
        (Executor(1 << 12), True),
        (Executor(in_reader_thread=True), False),
    ],
    ids=["full", "in-reader-thread"],
)
def test_outputs_without_a_segment_are_sent_inline(executor: Executor, asks: bool) -> None:
    assert not executor.write(b"b" * (1 << 16))
    assert bool(executor.asked) is asks


def test_the_reading_thread_does_not_wait_for_one_that_waits_for_it() -> None:
    """A finaliser runs in it, while another thread waits for a segment that it would receive."""
    asked: queue.SimpleQueue[int] = queue.SimpleQueue()
    segments = OutputSegments(
        lambda request: asked.put(request[0]),
        lambda: threading.current_thread() is not waiting,
        lambda _names: None,
    )
    waiting = threading.Thread(target=lambda: segments.write([b"a" * SIZE]))
    waiting.start()
    first = asked.get(timeout=20)
    assert segments.write([b"b" * SIZE])[0] is None
    segments.on_output_buffer(first, None)
    # As none is granted, one for this response alone.
    segments.on_output_buffer(asked.get(timeout=20), None)
    waiting.join()


def test_each_request_gets_its_own_buffer() -> None:
    """A finaliser asks for another while its thread waits; the responses come in any order."""
    requests: list[tuple[int, int, bool]] = []
    sizes = {1: 1 << 21, 2: 1 << 22}
    given = {number: Segment(size, writable=True) for number, size in sizes.items()}
    placed: list[Any] = []

    def on_request(request: tuple[int, int, bool]) -> None:
        requests.append(request)
        if len(requests) == 1:
            placed.append(segments.write([b"b" * sizes[2]])[0])
            return
        for number, _, _ in requests:
            segments.on_output_buffer(number, [*given[number].range(0, sizes[number])])

    segments = OutputSegments(on_request, lambda: False, lambda _names: None)
    placed.append(segments.write([b"a" * sizes[1]])[0])
    assert requests == [(1, sizes[1], False), (2, sizes[2], False)]
    assert [read(each) for each in placed] == [b"b" * sizes[2], b"a" * sizes[1]]
    with pytest.raises(WireError, match="not requested: number 2"):
        segments.on_output_buffer(2, None)


def test_nothing_is_asked_for_after_the_streams_end() -> None:
    executor = Executor()
    executor.segments.close()
    assert not executor.write(b"b" * (1 << 16))
    assert executor.asked == []
