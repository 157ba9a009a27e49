"""What a service remembers of its last seconds."""

from __future__ import annotations

from struct import iter_unpack
from time import monotonic_ns

from librt.strings import write_i64_le

from nereid.timeline import wire
from nereid.timeline.recorder import Recorder, clock_identity
from nereid.timeline.records import Event, ServiceTimeline, Wait

SECOND = 1_000_000_000


def read(recorder: Recorder, last_ns: int = 60 * SECOND) -> ServiceTimeline:
    frames = map(wire.file_part, recorder.frames(last_ns))
    return wire.read_timeline(b"".join(frames)).services[0]


def test_events_and_records() -> None:
    recorder = Recorder("scheduler", "s", 30)
    waits = recorder.add_ring(Wait, lambda ended: ended[1])
    before_ns = monotonic_ns()
    recorder.events.record("executor joined", "e", "onnxruntime")
    recorder.events.record("load", "m", from_ns=before_ns)
    wait = Wait("m", "1", "delay", before_ns, monotonic_ns(), 1)
    waits.append((wait.to_ns, wait))
    service = read(recorder)
    assert (service.kind, service.name) == ("scheduler", "s")
    joined, loaded, waited = service.records
    assert isinstance(joined, Event)
    assert isinstance(loaded, Event)
    assert (joined.what, joined.subject, joined.detail, joined.to_ns) == (
        "executor joined",
        "e",
        "onnxruntime",
        0,
    )
    assert before_ns == loaded.from_ns <= loaded.to_ns <= service.to_ns
    assert waited == wait
    assert service.from_ns <= before_ns


def test_what_has_begun_comes_first() -> None:
    recorder = Recorder("scheduler", "s", 30)
    waits = recorder.add_ring(Wait, lambda ended: ended[1])
    begun = Wait("m", "1", "delay", monotonic_ns(), 0, 1)
    recorder.add_unfinished(Wait, lambda: [begun])
    over = begun._replace(to_ns=monotonic_ns())
    waits.append((over.to_ns, over))
    assert read(recorder).records == [begun, over]


def test_older_records_are_not_shown() -> None:
    recorder = Recorder("scheduler", "s", 30)
    ring = recorder.add_ring(Wait, lambda ended: ended[1])
    now_ns = monotonic_ns()
    for ago_s in (50, 25, 5):
        wait = Wait("m", "1", str(ago_s), 1, 2, 3)
        ring.append((now_ns - ago_s * SECOND, wait))
    recorder._started_ns = 0
    shown = [each.reason for each in read(recorder).records if isinstance(each, Wait)]
    assert shown == ["25", "5"]
    shown = [each.reason for each in read(recorder, 10 * SECOND).records if isinstance(each, Wait)]
    assert shown == ["5"]


def test_records_that_made_way_shorten_the_time() -> None:
    recorder = Recorder("gateway", "g", 30, max_records=2)
    ring = recorder.add_ring(Wait, lambda ended: ended[1])
    times = [monotonic_ns() for _ in range(3)]
    for ended_ns in times:
        ring.append((ended_ns, Wait("m", "1", "delay", 1, ended_ns, 3)))
    service = read(recorder)
    assert service.from_ns == times[1]
    assert len(service.records) == 2


def test_a_ring_that_was_removed_keeps_what_it_has_for_a_while() -> None:
    recorder = Recorder("executor", "e", 30)

    def record(ended_ns: int) -> None:
        """Of an instance that ends at once."""
        ring = recorder.add_packed_ring(
            Wait,
            lambda data, _: [
                (each, Wait("m", "1", "", 1, each, 1)) for (each,) in iter_unpack("<q", data)
            ],
        )
        write_i64_le(ring.piece, ended_ns)
        ring.end(ended_ns)
        recorder.remove_ring(Wait, ring)

    now_ns = monotonic_ns()
    recorder._started_ns = 0
    record(now_ns)
    record(now_ns + 1)
    shown = [each.to_ns for each in read(recorder).records if isinstance(each, Wait)]
    assert shown == [now_ns, now_ns + 1]
    assert len(recorder._rings[Wait]) == 2


def test_rings_that_were_removed_are_forgotten() -> None:
    recorder = Recorder("executor", "e", 30)
    for _ in range(3):
        # Nothing was ever added.
        recorder.remove_ring(Wait, recorder.add_packed_ring(Wait, lambda data, objects: []))
    assert recorder._rings[Wait] == []


def test_one_clock_has_one_name() -> None:
    assert clock_identity() == clock_identity()
