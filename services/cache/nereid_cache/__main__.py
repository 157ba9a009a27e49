"""`python -m nereid_cache`: the cache as a separate process."""

from __future__ import annotations

# This import must come first: it removes the start folder from the import path.
import nereid.safe_path  # isort: split

import logging
import sys
from functools import partial
from typing import TYPE_CHECKING

import nereid.process.uncollected  # noqa: F401 - must come before the other imports
from nereid.config.inherited_secrets import read_environ
from nereid.config.settings_reader import read_settings
from nereid.observability.tracers import open_tracer
from nereid.process.service_process import (
    freeze_started_objects,
    listening_for,
    metrics_port,
    run_service,
)
from nereid.rpc import ServerOptions
from nereid_cache import metrics
from nereid_cache.service import CacheService, make_state, make_store
from nereid_cache.settings import CacheSettings

if TYPE_CHECKING:
    from nereid.process.service_process import Shutdown

_log = logging.getLogger(__name__)

_PROGRAM = "nereid_cache"


async def serve(settings: CacheSettings, shutdown: Shutdown) -> int:
    """Serve until shutdown is requested; return the exit code."""
    config = settings.store_config()
    service = CacheService(
        make_store(config),
        open_tracer(settings, "cache"),
        settings.with_keepalive(ServerOptions()),
        make_state(config),
    )
    try:
        with listening_for("--cache-listen"):
            address = await service.listen(settings)
        _log.info("open to %s at %s: the cache", settings.mesh_users(address), address)
        async with metrics_port(settings, partial(metrics.write, service)):
            freeze_started_objects()
            await shutdown.wait()
    finally:
        await service.close()
    return 0


def main() -> int:
    """Run the process; return its exit code."""
    settings = read_settings(CacheSettings, sys.argv[1:], read_environ(), _PROGRAM)
    return run_service(settings, serve, name="cache", program=_PROGRAM)


if __name__ == "__main__":
    sys.exit(main())
