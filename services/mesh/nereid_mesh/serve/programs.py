"""The modules that the processes of a mesh run, and how."""

from __future__ import annotations

import sys
from typing import Final

JOINED: Final = "nereid_mesh.serve.joined"
# The first argument of one that has an executor beside the gateway.
WITH_EXECUTOR: Final = "--with-executor"
GATEWAY: Final = "nereid_gateway"
SCHEDULER: Final = "nereid_scheduler"
EXECUTOR: Final = "nereid_executor"
CACHE: Final = "nereid_cache"


def module_argv(module: str, *arguments: str) -> tuple[str, ...]:
    """The command line of one; -P: nothing is imported from the folder that it is started in."""
    return (sys.executable, "-P", "-m", module, *arguments)
