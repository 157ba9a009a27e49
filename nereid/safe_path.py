"""Import nothing from the folder that a process is started in, like `python -P`.

`python -m` puts that folder first on the path, where a numpy.py would replace numpy. Programs
import this module first. In other programs the import does nothing. PYTHONPATH stays.
"""

from __future__ import annotations

import os
import sys

_spec = sys.modules["__main__"].__spec__
if not sys.flags.safe_path and _spec is not None and _spec.name.startswith(("nereid.", "nereid_")):
    os.execv(sys.executable, [sys.executable, "-P", *sys.orig_argv[1:]])  # noqa: S606 - its own command line
