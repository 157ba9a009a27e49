"""Large outputs of a worker that serves its instance's stream itself."""

from typing import Any

import pytest

from nereid.services.executor.backends.python.direct.output_segments import OutputSegments
from nereid.services.executor.backends.python.worker_site.nereid_worker.protocol.wire import (
    WireError,
)
from nereid.shm.mappings import read
from nereid.shm.segments import Segment

SIZE = 1 << 17


class Executor:
    """Responds with a segment of this size; 0: with none."""

    def __init__(self, size: int = SIZE, *, in_reader_thread: bool = False) -> None:
        self.asked: list[int] = []
        self.segment = Segment(size, writable=True) if size else None
        self.segments = OutputSegments(self._on_request, lambda: in_reader_thread)

    def _on_request(self, request: tuple[int, int]) -> None:
        number, size_bytes = request
        self.asked.append(size_bytes)
        buffer: list[Any] | None = None
        if self.segment is not None:
            buffer = list(self.segment.range(0, self.segment.size_bytes))
        self.segments.on_output_buffer(number, buffer)


def test_outputs_lie_side_by_side_in_the_segment() -> None:
    executor = Executor()
    outputs = [b"a" * 100, b"b" * (1 << 16)]
    buffer, placed = executor.segments.write(outputs)
    assert executor.asked == [128 + (1 << 16)]
    assert buffer is not None
    found = [read(buffer._replace(offset=each.offset, size_bytes=each.size)) for each in placed]
    assert found == outputs


@pytest.mark.parametrize(
    ("executor", "asks"),
    [
        (Executor(0), True),
        (Executor(1 << 12), True),
        (Executor(in_reader_thread=True), False),
    ],
    ids=["none", "small", "in-reader-thread"],
)
def test_outputs_without_a_segment_are_sent_inline(executor: Executor, asks: bool) -> None:
    outputs = [b"b" * (1 << 16)]
    assert executor.segments.write(outputs) == (None, outputs)
    assert bool(executor.asked) is asks


def test_each_request_gets_its_own_buffer() -> None:
    """A finaliser asks for another while its thread waits; the responses come in any order."""
    requests: list[tuple[int, int]] = []
    sizes = {1: 1 << 16, 2: 1 << 17}
    given = {number: Segment(size, writable=True) for number, size in sizes.items()}
    placed: list[Any] = []

    def on_request(request: tuple[int, int]) -> None:
        requests.append(request)
        if len(requests) == 1:
            placed.append(segments.write([b"b" * sizes[2]])[0])
            return
        for number, _ in requests:
            segments.on_output_buffer(number, [*given[number].range(0, sizes[number])])

    segments = OutputSegments(on_request, lambda: False)
    placed.append(segments.write([b"a" * sizes[1]])[0])
    assert requests == [(1, sizes[1]), (2, sizes[2])]
    assert [read(each) for each in placed] == [b"b" * sizes[2], b"a" * sizes[1]]
    with pytest.raises(WireError, match="not requested: number 2"):
        segments.on_output_buffer(2, None)


def test_nothing_is_asked_for_after_the_streams_end() -> None:
    executor = Executor()
    executor.segments.close()
    assert executor.segments.write([b"b" * (1 << 16)])[0] is None
    assert executor.asked == []
