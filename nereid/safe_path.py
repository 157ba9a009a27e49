"""Import nothing from the folder that a process is started in, as `python -P` does.

`python -m` puts that folder first on the path: a numpy.py in it would be imported in place of
numpy, and a checkout in place of what is installed. Imported first by the programs that users may
start without -P; elsewhere, such as in a test, this does nothing. PYTHONPATH is kept.
"""

from __future__ import annotations

import os
import sys

_spec = sys.modules["__main__"].__spec__
if not sys.flags.safe_path and _spec is not None and _spec.name.startswith(("nereid.", "nereid_")):
    os.execv(sys.executable, [sys.executable, "-P", *sys.orig_argv[1:]])  # noqa: S606 - the command line that it has
