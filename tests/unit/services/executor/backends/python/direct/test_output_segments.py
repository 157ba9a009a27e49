"""Large outputs of a worker that serves its instance's stream itself."""

from typing import Any

import pytest

from nereid.services.executor.backends.python.direct.output_segments import OutputSegments
from nereid.shm.mappings import read
from nereid.shm.segments import Segment

SIZE = 1 << 17


class Executor:
    """Responds with a segment of this size; 0: with none."""

    def __init__(self, size: int = SIZE, *, in_reader_thread: bool = False) -> None:
        self.asked: list[int] = []
        self.segment = Segment(size, writable=True) if size else None
        self.segments = OutputSegments(self._on_request, lambda: in_reader_thread)

    def _on_request(self, size_bytes: int) -> None:
        self.asked.append(size_bytes)
        buffer: list[Any] | None = None
        if self.segment is not None:
            buffer = list(self.segment.range(0, self.segment.size_bytes))
        self.segments.on_output_buffer(buffer)


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


def test_nothing_is_asked_for_after_the_streams_end() -> None:
    executor = Executor()
    executor.segments.close()
    assert executor.segments.write([b"b" * (1 << 16)])[0] is None
    assert executor.asked == []
