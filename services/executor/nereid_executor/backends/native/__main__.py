"""The process of a confined model: `python <this directory> <socket> <memory> <parent> <sources>`.

sources: the directories to import Nereid from, joined as in PYTHONPATH.
"""

import os
import sys

_SOURCES = sys.argv.pop().split(os.pathsep)

if __name__ == "__main__":
    sys.path[:1] = _SOURCES
    from nereid_executor.backends.native.host import run_host
    from nereid_executor.backends.python.worker_site.nereid_worker.runtime import process

    process.main(run_host)
