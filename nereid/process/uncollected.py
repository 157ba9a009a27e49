"""Switch the garbage collector off during imports, when this module is imported first.

Collections would take a twentieth of the import time. run_service() switches the collector on.
"""

from __future__ import annotations

import gc
import sys

_spec = sys.modules["__main__"].__spec__
if _spec is not None and _spec.name.startswith(("nereid.", "nereid_")):
    gc.disable()
