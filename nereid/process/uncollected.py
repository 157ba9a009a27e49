"""Switch the garbage collector off while the program of a service imports its modules.

Programs import this module first. Collections would take a twentieth of the import time.
run_service() switches the collector on again. In other programs the import does nothing.
"""

from __future__ import annotations

import gc
import sys

_spec = sys.modules["__main__"].__spec__
if _spec is not None and _spec.name.startswith(("nereid.", "nereid_")):
    gc.disable()
