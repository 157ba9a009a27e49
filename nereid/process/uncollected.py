"""Switch the garbage collector off while the program of a service imports its modules.

The programs of services import this module before all others. Imports create next to no garbage,
but the collector would walk all objects of the imported modules again and again. That would take a
twentieth of the time of the imports. run_service() (nereid.process.service_process) switches the
collector on again. In any other program, such as a test, importing this module does nothing.
"""

from __future__ import annotations

import gc
import sys

_spec = sys.modules["__main__"].__spec__
if _spec is not None and _spec.name.startswith(("nereid.", "nereid_")):
    gc.disable()
