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
    """Return the command line that runs a module.

    -P keeps the folder in which the process starts out of the import path.
    """
    return (sys.executable, "-P", "-m", module, *arguments)
