"""Which traces are written to which file, and when."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nereid.core.wire.messages import TracedModel, TracedTensor, TraceRule
from nereid.observability.tracing import Sampler
from nereid_gateway.plane.tracing.file_format import Trace
from nereid_gateway.plane.tracing.file_writer import TraceBatches, TraceFiles, Write

ALL = TraceRule(on=True, rate=1, limit=-1)


def trace(name: str = "m") -> Trace:
    return Trace([TracedModel(b"c", b"p", name, 1, "", (("REQUEST_START", 1),))], ())


def ids(writes: Iterator[Write]) -> list[tuple[list[int], bool]]:
    """Of each write: the requests, and whether they have a file of their own."""
    return [
        ([json.loads(f"[{text}]")[0]["id"] for text in write.texts], write.numbered)
        for write in writes
    ]


def added(batches: TraceBatches, sampler: Sampler, count: int) -> list[tuple[list[int], bool]]:
    return [each for _ in range(count) for each in ids(batches.add_trace(sampler, trace()))]


def test_without_a_frequency_traces_do_not_wait_for_others() -> None:
    batches, sampler = TraceBatches(), Sampler(ALL)
    assert not batches.due
    assert added(batches, sampler, 2) == []
    assert batches.due
    assert ids(batches.flush()) == [([1, 2], False)]
    assert not batches.due
    assert ids(batches.flush()) == ids(batches.close()) == []


def test_with_a_frequency_so_many_are_written_together() -> None:
    batches, sampler = TraceBatches(), Sampler(ALL._replace(log_frequency=2))
    assert added(batches, sampler, 5) == [([1, 2], True), ([3, 4], True)]
    assert not batches.due
    assert ids(batches.flush()) == []
    assert ids(batches.close()) == [([5], True)]


def test_a_limit_ends_a_file_and_requests_without_a_trace_count() -> None:
    batches, sampler = TraceBatches(), Sampler(ALL._replace(limit=3))
    assert added(batches, sampler, 2) == []
    assert not batches.due
    assert ids(batches.add_trace(sampler, None)) == [([1, 2], True)]
    # Short of its limit it ends as one without.
    short = Sampler(ALL._replace(limit=3))
    assert added(batches, short, 1) == []
    assert ids(batches.close()) == [([3], False)]


def test_new_rules_end_the_batches_of_old_ones() -> None:
    batches = TraceBatches()
    old, kept = (Sampler(ALL._replace(log_frequency=9)) for _ in range(2))
    added(batches, old, 1)
    added(batches, kept, 1)
    assert ids(batches.set_samplers([kept])) == [([1], True)]
    # One that was pending.
    assert added(batches, old, 1) == [([3], True)]
    assert added(batches, kept, 8) == [([2, *range(4, 12)], True)]


def test_a_batch_too_large_to_keep_is_written_early() -> None:
    batches, sampler = TraceBatches(), Sampler(ALL._replace(log_frequency=1000))
    list(batches.add_trace(sampler, trace("m" * (9 << 20))))
    (write,) = batches.add_trace(sampler, trace("m" * (9 << 20)))
    assert write.numbered
    assert len(write.texts) == 2


def numbers(path: Path) -> list[int]:
    return sorted({each["id"] for each in json.loads(path.read_text())})


def test_a_file_grows_and_others_are_numbered(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("of an earlier run")
    for round_ in range(2):
        files = TraceFiles(str(path))
        plain, paired = Sampler(ALL), Sampler(ALL._replace(log_frequency=2))
        for sampler in (plain, paired, plain, paired):
            files.record_trace(sampler, trace())
        files.set_samplers([])
        files.record_trace(plain, trace())
        files.close()
        assert numbers(path) == [1, 3, 5], round_
        assert numbers(tmp_path / "trace.json.0") == [2, 4]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_lone_trace_is_written_soon(tmp_path: Path) -> None:
    class Watched(TraceFiles):
        def _write(self, text: bytes, *, numbered: bool) -> None:
            super()._write(text, numbered=numbered)
            written.set()

    written = threading.Event()
    files = Watched(str(tmp_path / "t"))
    files.record_trace(Sampler(ALL), trace())
    assert written.wait(20)
    assert numbers(tmp_path / "t") == [1]
    files.close()


def test_files_that_cannot_be_written_are_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = TraceFiles(str(tmp_path / "none" / "t"))
    often = Sampler(ALL._replace(log_frequency=1))
    for _ in range(3):
        files.record_trace(often, trace())
    files.close()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "cannot be written" in caplog.text


def test_a_trace_that_cannot_be_formatted_harms_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = TraceFiles(str(tmp_path / "t"))
    sampler = Sampler(ALL)
    files.record_trace(sampler, Trace([], ()))
    files.record_trace(sampler, trace())
    files.close()
    assert numbers(tmp_path / "t") == [1]
    assert "a trace cannot be written" in caplog.text


class Held(TraceFiles):
    """Writes nothing until it may go on."""

    def __init__(self, path: Path, max_queued_tensor_bytes: int = 1 << 20) -> None:
        self.go_on = threading.Event()
        self._held = threading.Event()
        super().__init__(str(path), max_queued_tensor_bytes)
        self.record_trace(EACH, trace())
        assert self._held.wait(20)

    def _write(self, text: bytes, *, numbered: bool) -> None:
        self._held.set()
        assert self.go_on.wait(20)
        super()._write(text, numbered=numbered)


EACH = Sampler(ALL._replace(log_frequency=1, tensors=True))


def test_traces_past_the_queues_limit_are_dropped_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = Held(tmp_path / "t")
    for _ in range(5000):
        files.record_trace(EACH, None)
    files.go_on.set()
    files.close()
    assert "904 traces were dropped" in caplog.text


def test_queued_tensors_are_bounded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = Held(tmp_path / "t", max_queued_tensor_bytes=5)
    for data in (b"ab", b"cdef", None, b"cde", b"g"):
        tensor = TracedTensor("A", "T", "UINT8", (1,), data)
        below = trace().models[0]._replace(tensors=(tensor,))
        files.record_trace(EACH, trace()._replace(models=[below], tensors=()))
    files.go_on.set()
    files.close()
    assert [*map(numbers, sorted(tmp_path.iterdir()))] == [[1], [2], [3], [4]]
    assert "2 traces were dropped" in caplog.text
