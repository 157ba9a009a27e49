"""Traces, as Perfetto's schema, its trace processor and Chrome's format have them."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from nereid.timeline.records import (
    LOADING,
    MEMORY,
    EndedRequest,
    Event,
    Record,
    ServiceTimeline,
    Timeline,
    Wait,
)
from nereid_timeline.chrome import chrome
from nereid_timeline.joined import Joined, joined
from nereid_timeline.perfetto import perfetto
from nereid_timeline.tracks import Count, Flow, Item, Mark, Process, Slice, Track, laid_out
from tests.support.peers.perfetto_traces import query, trace_of
from tests.support.scripted_timeline import MS, START, US, Load, S, scripted


def mesh() -> Joined:
    timeline = scripted(
        Load(rate=600, executors=("e0", "e1"), delay=500 * US),
        Load("limited", rate=50, limited=30 * MS),
        seconds=2,
        killed={"e1": 1 * S},
    )
    timeline.services[1].records += [
        Event("load", "n", START, START + 5 * MS, "from models/n"),
        EndedRequest(1 << 62, "m", "1", START, START + 5, START + 9, "cancelled", 1),
    ]
    return joined(timeline)


def slices(items: object) -> Counter[str]:
    counts: Counter[str] = Counter()
    for item in items:  # type: ignore[attr-defined]
        if isinstance(item, Slice):
            counts[item.name] += 1
            counts.update(name for name, _, _ in item.children)
        elif isinstance(item, Mark):
            counts[item.name] += 1
    return counts


def test_slices_nest_and_lanes_do_not_overlap() -> None:
    ends: dict[int, int] = {}
    tracks: dict[int, Track] = {}
    processes = set()
    for item in laid_out(mesh()):
        match item:
            case Process():
                processes.add(item.id)
            case Track():
                assert item.process in processes
                tracks[item.id] = item
            case Slice():
                assert ends.get(item.track, 0) <= item.start <= item.end
                ends[item.track] = since = item.end
                since = item.start
                for _, start, end in item.children:
                    assert since <= start < end <= item.end
                    since = end
            case Count():
                assert tracks[item.track].counter
                assert item.value >= 0
    assert len({(each.process, each.name, each.lane) for each in tracks.values()}) == len(tracks)


def test_what_there_is() -> None:
    whole = mesh()
    counts = slices(laid_out(whole))
    responded = sum(len(each) for each in whole.by_gateway.values())
    executed = [each for each in whole.batches if each.execution is not None]
    members = sum(len(each.record.members) for each in whole.batches)
    assert counts["request"] == responded > 1000
    assert counts["queue"] == members + 1
    assert counts["batch"] == len(whole.batches)
    for name in ("execution", "executor reply"):
        assert counts[name] == len(executed)
    # Of the lost executor there is what its instance reported.
    failed = sum(bool(each.record.error) for each in whole.batches)
    for name in ("input copy", "compute", "output copy"):
        assert counts[name] == len(whole.batches) - failed > len(executed)
    assert counts["wait for rate limiter"] > 10
    assert counts["wait for delay"] > 10
    assert counts["load: n"] == counts["executor lost: e1"] == 1


def test_by_perfettos_schema() -> None:
    whole = mesh()
    trace = trace_of(b"".join(perfetto(laid_out(whole), whole.epoch_ns, START)))
    names: dict[int, str] = {}
    described = {}
    counts: Counter[str] = Counter()
    depth: Counter[int] = Counter()
    for packet in trace.packet:
        # Nothing of it is unknown to the schema.
        assert packet.trusted_packet_sequence_id in (0, 1)
        names |= {each.iid: each.name for each in packet.interned_data.event_names}
        if packet.HasField("track_descriptor"):
            described[packet.track_descriptor.uuid] = packet.track_descriptor
        if packet.HasField("track_event"):
            event = packet.track_event
            assert event.track_uuid in described
            assert START <= packet.timestamp <= START + 3 * S
            if event.type in (event.TYPE_SLICE_BEGIN, event.TYPE_INSTANT):
                counts[names[event.name_iid]] += 1
            depth[event.track_uuid] += {1: 1, 2: -1}.get(event.type, 0)
    assert counts == slices(laid_out(whole))
    assert set(depth.values()) == {0}
    (clocks,) = [each.clock_snapshot for each in trace.packet if each.HasField("clock_snapshot")]
    assert clocks.clocks[1].timestamp - clocks.clocks[0].timestamp == whole.epoch_ns
    for each in described.values():
        assert each.HasField("process") or described[each.parent_uuid].HasField("process")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["perfetto", "chrome"])
def test_by_perfettos_trace_processor(form: str) -> None:
    whole = mesh()
    pieces = perfetto(laid_out(whole), whole.epoch_ns, START)
    data = b"".join(pieces if form == "perfetto" else chrome(laid_out(whole)))
    counted, flows, errors, fills, processes, joins = query(
        data,
        "select name, count(*) from slice group by name",
        "select count(*) from flow",
        "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
        "select count(*), sum(value) from counter join track on track.id = track_id"
        " where track.name like 'm:1 batch size%'",
        "select name from process where name is not null order by name",
        "select a.name, b.name, count(*) from flow join slice a on a.id = slice_out"
        " join slice b on b.id = slice_in group by 1, 2 order by 1, 2",
    )
    assert dict(counted) == slices(laid_out(whole))
    executed = sum(each.execution is not None for each in whole.batches)
    members = sum(len(each.record.members) for each in whole.batches)
    assert flows == [(2 * members + executed,)]
    assert errors == []
    of_m = [each.record.size for each in whole.batches if each.record.model == "m"]
    assert 0 < fills[0][0] <= len(of_m)
    assert fills[0][1] <= sum(of_m)
    assert [each[0] for each in processes] == [
        "executor e0", "gateway gateway-0", "scheduler scheduler-0"
    ]  # fmt: skip
    again = members - sum(len(each) for each in whole.by_gateway.values())
    expected = [
        ("batch", "execution", executed),
        ("batch", "queue", again),
        ("queue", "batch", members),
        ("request", "queue", members - again),
    ]
    if form == "perfetto":
        assert joins == [each for each in expected if each[2]]
    else:
        # Their ends are slices' children that begin at the same time.
        assert sum(each[2] for each in joins) == sum(each[2] for each in expected)


def test_chromes_events() -> None:
    whole = mesh()
    document: dict[str, Any] = json.loads(b"".join(chrome(laid_out(whole))))
    events = document["traceEvents"]
    phases = Counter(each["ph"] for each in events)
    counts = Counter(each["name"] for each in events if each["ph"] in "Xi")
    assert counts == slices(laid_out(whole))
    assert set(phases) == {"M", "X", "s", "t", "C", "i"}
    request = next(each for each in events if each["name"] == "request")
    assert request["args"]["model"] in ("m", "limited")
    assert request["ts"] * 1000 == pytest.approx(START, rel=0.01)


def test_waits_of_any_version_of_a_model() -> None:
    waits: list[Record] = [
        Wait("m", "", MEMORY, START, START + 5 * MS, 3),
        Wait("m", "1", LOADING, START, START + 9 * MS, 3),
    ]
    service = ServiceTimeline("scheduler", "s", from_ns=START, to_ns=START + S, records=waits)
    items = list(laid_out(joined(Timeline(services=[service]))))
    names = {each.id: each.name for each in items if isinstance(each, Track)}
    assert [(names[each.track], each.name) for each in items if isinstance(each, Slice)] == [
        ("m waits", "wait for memory"),
        ("m:1 waits", "wait for loading"),
    ]


def test_counters_have_few_points() -> None:
    whole = joined(
        scripted(Load(rate=20_000, burst=100, max_batch=100, compute=lambda size: MS), seconds=0.5)
    )
    tracks: dict[int, str] = {}
    points: Counter[str] = Counter()
    for item in laid_out(whole):
        if isinstance(item, Track):
            tracks[item.id] = item.name
        elif isinstance(item, Count):
            points[tracks[item.track]] += 1
    requests = len(whole.requests)
    assert requests > 3000
    assert 0 < points["in flight"] < requests / 10


def test_large_numbers_and_names_beyond_ascii() -> None:
    flow = Flow((1 << 64) - 1, begins=True)
    items: list[Item] = [
        Process(1, "gateway gätway"),
        Track(1, 1, "ü"),
        Slice(1, "ß", 1 << 60, (1 << 60) + 1, (("n", 1 << 40), ("s", "é" * 300)), (flow,)),
    ]
    trace = trace_of(b"".join(perfetto(items)))
    begin = trace.packet[3]
    assert begin.timestamp == 1 << 60
    assert begin.track_event.flow_ids == [flow.id]
    assert begin.interned_data.event_names[0].name == "ß"
    assert [each.uint_value for each in begin.track_event.debug_annotations] == [1 << 40, 0]
    assert begin.track_event.debug_annotations[1].string_value == "é" * 300
    assert trace.packet[2].track_descriptor.name == "ü"
