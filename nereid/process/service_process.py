"""Process of a service: logging, event loop, signals, exit code."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
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
# Only objects that may be in cycles count.
_GARBAGE_THRESHOLD = 10_000
_INTERRUPTED_CODE = 130
# With fewer, the event loop cannot begin, or no port can be opened.
_MIN_OPEN_FILES = 64
# Seconds to wait before deferred modules are imported. A small model loads faster.
_DEFERRED_S = 0.3


class StartError(Exception):
    """Raised if the service cannot start. The text says why."""


class MetricsPortSettings(Protocol):
    """Flags of a service that can serve its own metrics."""

    @property
    def metrics_port(self) -> int:
        """Port on which metrics are served; -1 means none."""
        ...

    @property
    def metrics_address(self) -> str:
        """Address of the interface on which metrics are served."""
        ...


class Shutdown:
    """Request to shut down, by SIGTERM, SIGINT or request(). Create it inside the event loop."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.request)

    def request(self) -> None:
        """Request the shutdown, so that wait() returns."""
        self._requested.set()

    async def await_start(self, starting: Coroutine[None, None, None]) -> None:
        """Run the start of a service. A shutdown request meanwhile ends the process at once."""
        task = asyncio.ensure_future(starting)
        requested = asyncio.ensure_future(self._requested.wait())
        await asyncio.wait((task, requested), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            _log.info("stopping before the start was finished: nothing was accepted")
            logging.shutdown()
            # Skip the interpreter's clean-up: it would wait for threads that wait for an object
            # store.
            os._exit(0)
        requested.cancel()
        await task

    async def wait(self) -> None:
        """Log that the service has started, and wait for a shutdown request."""
        _log.info("started: modules=%s", "compiled" if is_compiled() else "pure")
        await self._requested.wait()


def run_service(
    settings: Settings,
    serve: Callable[[Settings, Shutdown], Awaitable[int]],
    *,
    name: str,
    program: str,
) -> int:
    """Run `serve` in an event loop and return the exit code. `name` appears in the log."""

    async def run() -> int:
        start_heartbeat(os.environ)
        begin_removal_of_abandoned()
        return await serve(settings, Shutdown())

    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= open_files < _MIN_OPEN_FILES:
        sys.stderr.write(
            f"{program}: it may open {open_files} files (ulimit -n), and needs at least"
            f" {_MIN_OPEN_FILES}\n"
        )
        return _START_ERROR_CODE
    set_up_logging(settings, name)
    # Imported modules are never freed. nereid.process.uncollected has switched the collector off.
    gc.freeze()
    gc.enable()
    try:
        return uvloop.run(run())
    except StartError as error:
        sys.stderr.write(f"{program}: {error}\n")
        return _START_ERROR_CODE
    except KeyboardInterrupt:
        # SIGINT arrived before its handler was installed.
        return _INTERRUPTED_CODE


def freeze_started_objects() -> None:
    """Exclude all present objects from garbage collection, and collect less often.

    With the default threshold of 700 and sixty requests in flight, the collector would run every
    sixty requests.
    """
    gc.freeze()
    gc.set_threshold(_GARBAGE_THRESHOLD)


async def finish_start(import_deferred: Callable[[], Awaitable[None]]) -> None:
    """Import the deferred modules, then freeze all objects; run this as a task."""
    # Executors join and models load right after the start, and need this event loop.
    await asyncio.sleep(_DEFERRED_S)
    await import_deferred()
    freeze_started_objects()


@contextmanager
def listening_for(flag: str) -> Iterator[None]:
    """Turn an OSError of a listen call into a StartError that names the flag of the address."""
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
    """Serve the service's metrics and health within this context, if the settings name a port."""
    endpoint = MetricsEndpoint(write, is_ready=is_ready)
    if settings.metrics_port >= 0:
        with listening_for("--metrics-port"):
            await endpoint.listen(settings.metrics_address, settings.metrics_port)
    try:
        yield
    finally:
        await endpoint.close()
