"""Import nothing from the folder that a process is started in, like `python -P`.

`python -m` puts that folder first on the path: a numpy.py in the folder would be imported in place
of numpy, and a checkout in place of the installed packages. Programs that users may start without
-P import this module first. In any other program, such as a test, importing it does nothing.
Folders in PYTHONPATH stay on the path.
"""

from __future__ import annotations

import os
import sys

_spec = sys.modules["__main__"].__spec__
if not sys.flags.safe_path and _spec is not None and _spec.name.startswith(("nereid.", "nereid_")):
    os.execv(sys.executable, [sys.executable, "-P", *sys.orig_argv[1:]])  # noqa: S606 - its own command line
