"""The modules that the processes of a mesh run, by `python -m`."""

from __future__ import annotations

from typing import Final

JOINED: Final = "nereid.cli.serve.joined"
# The first argument of one that has an executor beside the gateway.
WITH_EXECUTOR: Final = "--with-executor"
GATEWAY: Final = "nereid.services.gateway"
SCHEDULER: Final = "nereid.services.scheduler"
EXECUTOR: Final = "nereid.services.executor"
CACHE: Final = "nereid.services.cache"
