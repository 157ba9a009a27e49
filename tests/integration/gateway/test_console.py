"""The console of a gateway whose scheduler says little, and consoles that read slowly."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nereid.core.errors import Unavailable
from nereid.facts.document import Document, Permissions
from nereid.pb import nereid_pb2 as pb
from nereid_gateway.core.access.grant import Grant, Permission
from nereid_gateway.core.routes import resolve
from nereid_gateway.extras.console.endpoints import ConsoleEndpoints
from nereid_gateway.extras.console.hub import Console, ConsoleHub
from nereid_gateway.extras.console.look import Observer
from nereid_gateway.extras.console.queries import View
from nereid_gateway.extras.console.static_files import read_files
from nereid_gateway.guards.policy.call_policy import CallPolicy
from nereid_gateway.plane.slow_requests import SlowRequests
from nereid_gateway.server.call import HttpCall
from tests.support.console.patches import patched
from tests.support.console.typed_documents import check
from tests.support.gateway.gateway_http import ask
from tests.support.gateway.gateway_site import GatewaySite, gateway_site, serve_metrics_page

_MAX_CONSOLES = 4
_LIMIT_S = 20
_NO_RULES = CallPolicy({}, (), None, str.encode)
_PERMISSIONS: Permissions = {
    "principal": "",
    "rights": [],
    "for_all_models": [],
    "may_load": False,
    "may_infer": False,
    "may_drain": False,
}


async def no_page() -> bytes:
    return b""


@contextlib.asynccontextmanager
async def opened_hub(site: GatewaySite) -> AsyncIterator[ConsoleHub]:
    data_plane = site.service._data_plane
    made = ConsoleHub(
        data_plane,
        Observer(data_plane, pb.MetricsRequest(), no_page),
        SlowRequests(),
        max_consoles=_MAX_CONSOLES,
        interval_s=0.01,
    )
    yield made
    made.end_all()


@pytest.fixture
async def hub(site: GatewaySite) -> AsyncIterator[ConsoleHub]:
    async with opened_hub(site) as made:
        yield made


class Viewer:
    """A console in the test."""

    def __init__(self, hub: ConsoleHub, view: View | None = None, client: str = "viewer") -> None:
        self.events: asyncio.Queue[tuple[bytes, dict[str, Any]]] = asyncio.Queue()
        self.document: dict[str, Any] = {}
        self.ended = asyncio.Event()
        self.permissions: Permissions | None = _PERMISSIONS
        self.console = Console(
            client, view or View(), lambda: self.permissions, self._receive, end=self.ended.set
        )
        hub.open(self.console)

    def _receive(self, event: bytes, data: bytes) -> None:
        self.events.put_nowait((event, json.loads(data)))

    async def next_event(self) -> bytes:
        event, data = await asyncio.wait_for(self.events.get(), _LIMIT_S)
        self.document = data if event == b"snapshot" else patched(self.document, data)
        return event


async def test_a_scheduler_that_says_less_is_named() -> None:
    async with gateway_site(console=True) as site:
        response = await ask(site, "GET", "/console/facts")
        document = json.loads(response.body)
        check(document, Document)
        assert [each.partition(":")[0] for each in document["server"]["problems"]] == [
            "Facts",
            "Metrics",
        ]
        rows = document["models"]["rows"]
        assert {each["health"] for each in rows.values()} == {"failed", "idle", "out"}


async def test_a_slow_reader_misses_some_and_then_has_everything(hub: ConsoleHub) -> None:
    quick, slow = Viewer(hub), Viewer(hub)
    assert [await quick.next_event(), await slow.next_event()] == [b"snapshot", b"snapshot"]
    slow.console.paused = True
    assert await quick.next_event() == b"patch"
    assert slow.events.empty()
    slow.console.paused = False
    assert await quick.next_event() == b"patch"
    assert await slow.next_event() == b"snapshot"
    assert await slow.next_event() == b"patch"
    assert await quick.next_event() == b"patch"
    assert slow.document == quick.document


async def test_other_rights_come_with_a_snapshot_and_none_end_it(hub: ConsoleHub) -> None:
    viewer = Viewer(hub)
    await viewer.next_event()
    viewer.permissions = {**_PERMISSIONS, "may_load": True}
    while await viewer.next_event() != b"snapshot":
        pass
    assert viewer.document["permissions"]["may_load"]
    viewer.permissions = None
    await asyncio.wait_for(viewer.ended.wait(), _LIMIT_S)


async def test_one_costly_look_delays_no_other_console(hub: ConsoleHub) -> None:
    viewer = Viewer(hub)
    costly = iter([True])

    def permissions() -> Permissions:
        # Looks of such a cost would have pauses of 30 s.
        ends_s = time.thread_time() + 0.5 * next(costly, False)
        while time.thread_time() < ends_s:
            pass
        return _PERMISSIONS

    viewer.console.permissions = permissions
    await viewer.next_event()
    await Viewer(hub, client="another").next_event()


async def test_consoles_are_bounded_in_all_and_for_each_client(hub: ConsoleHub) -> None:
    viewers = [Viewer(hub, client="a") for _ in range(_MAX_CONSOLES // 2)]
    with pytest.raises(Unavailable, match="too many consoles"):
        Viewer(hub, client="a")
    viewers += [Viewer(hub, client="b") for _ in range(_MAX_CONSOLES // 2)]
    with pytest.raises(Unavailable, match="too many consoles"):
        Viewer(hub, client="c")
    hub.close(viewers[0].console)
    assert await Viewer(hub, client="c").next_event() == b"snapshot"
    hub.end_all()
    assert viewers[-1].ended.is_set()
    with pytest.raises(Unavailable):
        Viewer(hub, client="d")


async def test_a_view_that_changes_with_the_models(hub: ConsoleHub, site: GatewaySite) -> None:
    viewer = Viewer(hub, View(query="o", limit=3))
    await viewer.next_event()
    assert viewer.document["models"]["keys"] == ["broken/1", "echo/1", "hold/1"]
    site.scheduler.models = "echo", "other"
    while "other/1" not in viewer.document["models"]["keys"]:
        await viewer.next_event()
    assert viewer.document["models"]["keys"] == ["broken/1", "echo/1", "other/1"]
    assert list(viewer.document["models"]["rows"]) == ["broken/1", "echo/1", "other/1"]


async def test_who_may_see_one_model_is_sent_no_figure_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In snapshots and patches, beside one who may see all."""
    held = 5

    def page(*_: object) -> bytes:
        lines = ["nereid_executors 1", f"nereid_held_requests {held}"]
        return "\n".join([*lines, "nereid_cache_capacity_bytes 10\n"]).encode()

    serve_metrics_page(monkeypatch, page)
    rights = frozenset({"console"})
    grants = Grant((Permission(rights, ("echo",)),)), Grant((Permission(rights),))
    async with gateway_site() as site, opened_hub(site) as hub:
        one, every = (Viewer(hub, View(model="echo", grant=grant), "v") for grant in grants)
        for held in (5, 6):
            while every.document.get("summary", {}).get("held") != held:
                await every.next_event()
            await one.next_event()
        assert every.document["cache"]["capacity_bytes"] == 10
        assert "6 requests (of all models)" in json.dumps(every.document["models"])
        assert "6 requests (of all models)" in json.dumps(every.document["details"])
        for document in (one.document, every.document):
            check(document, Document)
        assert one.document.keys() == every.document.keys() - {"cache"}
        assert "of all models" not in json.dumps(one.document)
        assert "held" not in one.document["summary"]


def test_files_are_sent_once(hub: ConsoleHub, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<!doctype html>")
    endpoints = ConsoleEndpoints(hub, _NO_RULES, read_files(tmp_path))

    def respond(target: bytes, etag: bytes = b"") -> bytes:
        call = HttpCall(lambda: None)
        call.headers = {b"if-none-match": etag}
        endpoints.page(call, resolve(target))
        return b"".join(call.unwritten)

    head, _, body = respond(b"/console").partition(b"\r\n\r\n")
    assert body == b"<!doctype html>"
    assert b"Content-Security-Policy: default-src 'none'" in head
    assert respond(b"/console/static/index.html").endswith(body)
    (etag,) = [each[6:] for each in head.split(b"\r\n") if each.startswith(b"ETag: ")]
    unchanged = respond(b"/console", etag)
    assert unchanged.startswith(b"HTTP/1.1 304 ")
    assert b"Content-Length" not in unchanged
    assert respond(b"/console/static/none.js").startswith(b"HTTP/1.1 404 ")
