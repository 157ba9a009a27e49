"""Switches the garbage collector off while the programs of services import their modules.

Such programs import this module first. Modules leave next to no garbage, and the collector walks
all of them again and again, which takes a twentieth of their imports' time. run_service()
(nereid.process.service_process) switches it on. In another program, such as a test, this does
nothing.
"""

from __future__ import annotations

import gc
import sys

_spec = sys.modules["__main__"].__spec__
if _spec is not None and _spec.name.startswith(("nereid.", "nereid_")):
    gc.disable()
