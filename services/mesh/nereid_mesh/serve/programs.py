"""The modules that the processes of a mesh run, and their command lines."""

from __future__ import annotations

import sys
from typing import Final

JOINED: Final = "nereid_mesh.serve.joined"
GATEWAY: Final = "nereid_gateway"
SCHEDULER: Final = "nereid_scheduler"
EXECUTOR: Final = "nereid_executor"
CACHE: Final = "nereid_cache"


def module_argv(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command line of a module; -P keeps the current folder off the path."""
    return (sys.executable, "-P", "-m", module, *arguments)
