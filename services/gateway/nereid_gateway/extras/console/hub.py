"""The consoles that are open at a gateway, and the updates that are sent to them.

One look at the mesh per interval serves all consoles. Changes are encoded once per view. A console
that reads slowly misses updates, and gets a whole document when it has caught up.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from nereid.core.errors import Unavailable
from nereid.facts import document
from nereid_gateway.extras.console import sections
from nereid_gateway.extras.console.diagnoses import DiagnosisWindow, diagnosed
from nereid_gateway.extras.console.encoding import (
    NOTHING_SENT,
    Encoder,
    ViewDocument,
    view_document,
)
from nereid_gateway.extras.console.model_rows import ModelRows, explained
from nereid_gateway.extras.console.models_page import ModelPages
from nereid_gateway.extras.console.slices import Slices

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable

    from nereid_gateway.extras.console.loads import Key, Loads
    from nereid_gateway.extras.console.look import IndexEntry, Look, Observer
    from nereid_gateway.extras.console.queries import View
    from nereid_gateway.plane.data_plane import DataPlane
    from nereid_gateway.plane.slow_requests import SlowRequests

_log = logging.getLogger(__name__)

# One client may open at most half of this number.
MAX_CONSOLES: Final = 256
INTERVAL_S: Final = 1.0
# Minimum seconds between the beginnings of looks. A new console makes a look begin earlier.
_MIN_PAUSE_S: Final = 0.25
_MAX_PAUSE_S: Final = 30.0
# Maximum share of one core for looks and updates. An expensive look is followed by a longer pause.
# With work that is not measured, such as the event loop's, the share is 2 %.
_SHARE: Final = 0.015
_TOO_MANY: Final = (
    "too many consoles are open at this gateway: it serves {most} at once, {own} of them to one"
    " client; close one, or try again later"
)
_RETRY_MS: Final = 5000


@dataclass(eq=False)
class Console:
    """An open console."""

    # Client that has opened the console.
    client: Hashable
    view: View
    # Returns None if the viewer may no longer use the console.
    permissions: Callable[[], document.Permissions | None]
    # Sends an event's name and data.
    send: Callable[[bytes, bytes], None]
    end: Callable[[], None]
    paused: bool = False
    # True if the console has got all changes up to the last look.
    synced: bool = False
    shown_permissions: document.Permissions | None = None


class ConsoleHub:
    """The open consoles. One task looks at the mesh for all. The hub belongs to one event loop."""

    def __init__(  # noqa: PLR0913 (most by keyword)
        self,
        data_plane: DataPlane,
        observer: Observer,
        slow_requests: SlowRequests,
        *,
        grpc_port: int = 0,
        timeline_seconds: float = 0.0,
        max_consoles: int = MAX_CONSOLES,
        interval_s: float = INTERVAL_S,
    ) -> None:
        """Make a hub without consoles. grpc_port: port for the page's code snippets, or 0."""
        self._data_plane = data_plane
        self._observer = observer
        self._slow_requests = slow_requests
        self._grpc_port = grpc_port
        self._timeline_seconds = timeline_seconds
        self._max_consoles = max_consoles
        self._interval_s = interval_s
        self._consoles: dict[Console, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._opened = asyncio.Event()
        self._pages = ModelPages()
        self._rows = ModelRows()
        self._earlier: Look | None = None
        self._window = DiagnosisWindow()
        self._last = NOTHING_SENT
        self._pause_s = interval_s
        # Processor time of the last look.
        self._cost_s = 0.0
        self._closed = False

    def open(self, console: Console) -> None:
        """Send updates to a console until close(). Raises Unavailable for too many consoles."""
        most = self._max_consoles
        own = sum(other.client == console.client for other in self._consoles)
        if self._closed or len(self._consoles) >= most or own >= most // 2:
            raise Unavailable(_TOO_MANY.format(most=most, own=most // 2), retry_after_ms=_RETRY_MS)
        self._consoles[console] = None
        self._opened.set()
        if self._task is None:
            self._slow_requests.watch(watched=True)
            self._task = asyncio.create_task(self._run())

    def close(self, console: Console) -> None:
        """Stop sending updates to a console. A second call does nothing."""
        self._consoles.pop(console, None)
        if not self._consoles and self._task is not None:
            self._task.cancel()
            self._task = None
            self._slow_requests.watch(watched=False)
            self._earlier = None
            self._window = DiagnosisWindow()
            self._last = NOTHING_SENT

    def end_all(self) -> None:
        """End all consoles and refuse further ones, because the gateway is stopping."""
        self._closed = True
        for console in tuple(self._consoles):
            console.end()
            self.close(console)

    async def _run(self) -> None:
        while True:
            began_s = time.monotonic()
            self._opened.clear()
            cost = Slices()
            try:
                views = {console.view for console in self._consoles}
                detailed = {view.model for view in views if view.model}
                choose = partial(self._shown, views)
                with_events = any(view.events for view in views)
                look = await self._observer.look(detailed, choose, cost, with_events=with_events)
                with cost:
                    await self._publish(look, views, cost)
            except Exception:
                _log.exception(
                    "unexpected error: consoles are not updated until the next look at the mesh"
                )
                for console in self._consoles:
                    console.synced = False
            # A cost of one look alone, such as imports, would delay the next console by seconds.
            usual_s, self._cost_s = min(cost.total_s, self._cost_s), cost.total_s
            await self._pause(began_s, usual_s)

    async def _pause(self, began_s: float, cost_s: float) -> None:
        """Wait one interval from the look's beginning, or longer after an expensive look."""
        least_s = min(_MAX_PAUSE_S, cost_s / _SHARE)
        self._pause_s = max(self._interval_s, least_s)
        took_s = time.monotonic() - began_s
        soon_s = max(_MIN_PAUSE_S, least_s) - took_s
        await asyncio.sleep(max(0.0, soon_s))
        rest_s = self._pause_s - (time.monotonic() - began_s)
        if rest_s > 0:
            try:
                await asyncio.wait_for(self._opened.wait(), rest_s)
            except TimeoutError:
                return

    def _shown(
        self, views: Collection[View], index: tuple[IndexEntry, ...], loads: Loads
    ) -> set[Key]:
        pages = (self._pages.page(index, loads, view) for view in views)
        return {entry.key for page in pages for entry in page.entries}

    async def _publish(self, look: Look, views: Collection[View], cost: Slices) -> None:
        earlier, self._earlier = self._earlier or look, look
        self._window.add(look)
        pages = {view: self._pages.page(look.index, look.loads, view) for view in views}
        owners = sections.owners(look)
        rows: dict[Key, document.Model] = {}
        for entry in chain.from_iterable(page.entries for page in pages.values()):
            if entry.key not in rows:
                owner = owners.get(entry.key.name, "")
                rows[entry.key] = self._rows.row(entry, look, earlier, owner)
                await cost.pause()
        self._rows.forget_others(rows)
        shared = self._shared(look, earlier)
        encoder = Encoder(shared, rows, self._last)
        documents: dict[View, ViewDocument] = {}
        for view, page in pages.items():
            own = {} if view.shows_all else sections.limited(shared, look, view.shows)
            if view.model and view.shows(view.model):
                own["details"] = _details(look, self._window.begin, view)
            if view.events:
                own["events"] = sections.events(look, view)
            documents[view] = view_document(
                view, page, own.get("summary", shared["summary"])["models"], own
            )
            await cost.pause()
        for console in tuple(self._consoles):
            # Consoles may have been opened or closed during a pause.
            if console.view in documents and console in self._consoles:
                self._update(console, documents[console.view], encoder)
                await cost.pause()
        self._last = encoder.last_sent_parts(documents)

    def _update(self, console: Console, shown: ViewDocument, encoder: Encoder) -> None:
        if console.paused:
            console.synced = False
            return
        permissions = console.permissions()
        if permissions is None:
            self.close(console)
            console.end()
        elif console.synced and permissions == console.shown_permissions:
            console.send(b"patch", encoder.patch(console.view, shown))
        else:
            console.synced, console.shown_permissions = True, permissions
            console.send(b"snapshot", encoder.snapshot(shown, permissions))

    def _shared(self, look: Look, earlier: Look) -> dict[str, Any]:
        metadata = self._data_plane.server_metadata()
        server: document.Server = {
            "name": metadata.name,
            "version": metadata.version,
            "ready": look.server_ready,
            "draining": self._data_plane.draining,
            "time_s": round(look.time_s, 3),
            "interval_s": round(self._pause_s, 2),
            "consoles": len(self._consoles),
            "max_consoles": self._max_consoles,
            "grpc_port": self._grpc_port,
            "timeline_seconds": self._timeline_seconds,
            "problems": sections.problems(look),
        }
        shared: dict[str, Any] = {
            "format": document.FORMAT,
            "server": server,
            "summary": sections.summary(look, earlier),
            "executors": sections.executors(look),
            "schedulers": sections.schedulers(look),
            "slow_requests": self._slow_requests.slowest(),
        }
        cache = sections.cache(look, earlier)
        return shared if cache is None else {**shared, "cache": cache}


def _details(look: Look, begin: Look, view: View) -> document.Details:
    declared = {(facts.model, str(facts.version)): facts.config for facts in look.hosting.configs}
    return {
        "model": view.model,
        "versions": {
            key.version: sections.configuration(declared.get(key), config.proto)
            for key, config in look.configs.items()
            if key.name == view.model and view.version in ("", key.version)
        },
        "batches": sections.batches(look, view),
        "minutes": sections.minutes(look, view),
        "steps": sections.steps(look, view),
        "diagnoses": diagnosed(look, begin, view),
        "explanation": explained(look, view),
    }
