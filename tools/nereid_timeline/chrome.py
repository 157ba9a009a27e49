"""Writes a trace as Chrome's JSON trace events, which chrome://tracing and Perfetto read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from nereid_timeline.tracks import Count, Mark, Process, Slice, Track

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nereid_timeline.tracks import Arguments, Item


def chrome(items: Iterable[Item]) -> Iterator[bytes]:
    """Yield the content of a trace file, in pieces."""
    yield b'{"displayTimeUnit":"ns","traceEvents":[\n'
    tracks: dict[int, Track] = {}
    separator = ""
    for item in items:
        if isinstance(item, Track):
            tracks[item.id] = item
        for event in _events(item, tracks):
            yield (separator + json.dumps(event, separators=(",", ":"))).encode()
            separator = ",\n"
    yield b"\n]}\n"


def _events(item: Item, tracks: dict[int, Track]) -> Iterator[dict[str, Any]]:
    match item:
        case Process():
            yield _metadata("process_name", item.id, 0, name=item.name)
        case Track(counter=False):
            name = f"{item.name} {item.lane + 1}" if item.lane else item.name
            yield _metadata("thread_name", item.process, item.id, name=name)
            yield _metadata("thread_sort_index", item.process, item.id, sort_index=item.id)
        case Slice():
            yield from _slice(item, tracks[item.track].process)
        case Mark():
            where = {"pid": tracks[item.track].process, "tid": item.track}
            yield {
                "ph": "i", "s": "t", "name": item.name, "ts": _us(item.time), **where,
                **_arguments(item.arguments),
            }  # fmt: skip
        case Count():
            track = tracks[item.track]
            yield {
                "ph": "C", "name": track.name, "pid": track.process, "ts": _us(item.time),
                "args": {"value": item.value},
            }  # fmt: skip


def _slice(item: Slice, process: int) -> Iterator[dict[str, Any]]:
    where = {"pid": process, "tid": item.track}
    yield {
        "ph": "X", "name": item.name, "ts": _us(item.start), "dur": _us(item.end - item.start),
        **where, **_arguments(item.arguments),
    }  # fmt: skip
    for flow in item.flows:
        yield {
            "ph": "s" if flow.begins else "t", "cat": "flow", "name": "flow", "id": hex(flow.id),
            "bp": "e", "ts": _us(item.start), **where,
        }  # fmt: skip
    for name, start, end in item.children:
        yield {"ph": "X", "name": name, "ts": _us(start), "dur": _us(end - start), **where}


def _metadata(what: str, process: int, thread: int, **arguments: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": arguments}


def _arguments(arguments: Arguments) -> dict[str, Any]:
    return {"args": dict(arguments)} if arguments else {}


def _us(ns: int) -> float:
    return ns / 1_000
