"""Import of this module switches the garbage collector off, for the imports of a service's program.

The programs of services import this module before all others. Importing modules creates next to no
garbage, but the collector would walk all of their objects again and again, which takes a twentieth
of the time of the imports. run_service() (nereid.process.service_process) switches the collector on
again. In any other program, such as a test, importing this module does nothing.
"""

from __future__ import annotations

import gc
import sys

_spec = sys.modules["__main__"].__spec__
if _spec is not None and _spec.name.startswith(("nereid.", "nereid_")):
    gc.disable()
