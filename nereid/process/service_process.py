"""A service's process: logging, event loop, signals, exit code.

Each entry point (`services/*/__main__.py`, `nereid_mesh.serve.joined`) passes a coroutine function
that starts its service, awaits `Shutdown.wait()` and drains. Knows no service.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

import uvloop

from nereid.core.files.temporary_directories import begin_removal_of_abandoned
from nereid.observability.logging import set_up_logging
from nereid.observability.metrics_endpoint import MetricsEndpoint
from nereid.process.liveness import start_heartbeat
from nereid.version import is_compiled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator

    from nereid.observability.logging import LogSettings
    from nereid.observability.metrics_page import Page

    Settings = TypeVar("Settings", bound=LogSettings)

_log = logging.getLogger(__name__)

_START_ERROR_CODE = 2
# Objects that may be in cycles, made and not freed since the collector ran.
_GARBAGE_THRESHOLD = 10_000
_INTERRUPTED_CODE = 130
# A small model is loaded in less.
_DEFERRED_S = 0.3


class StartError(Exception):
    """The service cannot start; the text says why."""


class MetricsPortSettings(Protocol):
    """The flags of a service that can serve metrics of its own; port -1: it does not."""

    @property
    def metrics_port(self) -> int: ...
    @property
    def metrics_address(self) -> str: ...


class Shutdown:
    """Requested by SIGTERM, SIGINT or request(). Create it inside the event loop."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.request)

    def request(self) -> None:
        self._requested.set()

    async def await_start(self, starting: Coroutine[None, None, None]) -> None:
        """Await the start of a service that may wait long for others, such as object stores. The
        process ends if it is to end meanwhile: it has accepted nothing.
        """
        task = asyncio.ensure_future(starting)
        requested = asyncio.ensure_future(self._requested.wait())
        await asyncio.wait((task, requested), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            _log.info("stopping before the start was finished: nothing was accepted")
            logging.shutdown()
            # Threads may wait for a store, and the interpreter would wait for them.
            os._exit(0)
        requested.cancel()
        await task

    async def wait(self) -> None:
        """For services that have started."""
        _log.info("started: modules=%s", "compiled" if is_compiled() else "pure")
        await self._requested.wait()


def run_service(
    settings: Settings,
    serve: Callable[[Settings, Shutdown], Awaitable[int]],
    *,
    name: str,
    program: str,
) -> int:
    """Run `serve` in an event loop; the exit code. name: of the service, for its log."""

    async def run() -> int:
        start_heartbeat(os.environ)
        begin_removal_of_abandoned()
        return await serve(settings, Shutdown())

    set_up_logging(settings, name)
    # What was imported lives for good; see nereid.process.uncollected.
    gc.freeze()
    gc.enable()
    try:
        return uvloop.run(run())
    except StartError as error:
        sys.stderr.write(f"{program}: {error}\n")
        return _START_ERROR_CODE
    except KeyboardInterrupt:
        # Before there was a handler for it.
        return _INTERRUPTED_CODE


def freeze_started_objects() -> None:
    """Objects that live by now live for good: spare the collector from walking them, ever.

    What comes later belongs to requests in flight, hardly any of it in cycles. At the interpreter's
    threshold of 700 objects, sixty requests at a time have it walked for every sixty requests.
    """
    gc.freeze()
    gc.set_threshold(_GARBAGE_THRESHOLD)


async def finish_start(import_deferred: Callable[[], Awaitable[None]]) -> None:
    """In a task, once the service serves: import what it started without, and freeze all that."""
    # Executors join meanwhile, and models load; both wait for this event loop.
    await asyncio.sleep(_DEFERRED_S)
    await import_deferred()
    freeze_started_objects()


@contextmanager
def listening_for(flag: str) -> Iterator[None]:
    """Turn an OSError of a listen call into a StartError that names its flag."""
    try:
        yield
    except OSError as error:
        raise StartError(f"{flag}: {error.strerror or error}") from error


@asynccontextmanager
async def metrics_port(
    settings: MetricsPortSettings,
    write: Callable[[Page], None],
    is_ready: Callable[[], bool] = lambda: True,
) -> AsyncIterator[None]:
    """Serve the service's own metrics and health meanwhile, if its settings ask for it."""
    endpoint = MetricsEndpoint(write, is_ready=is_ready)
    if settings.metrics_port >= 0:
        with listening_for("--metrics-port"):
            await endpoint.listen(settings.metrics_address, settings.metrics_port)
    try:
        yield
    finally:
        await endpoint.close()
