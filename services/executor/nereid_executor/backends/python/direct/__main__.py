"""A worker that can serve a stream: `python <this directory> <socket> <memory> <parent> <sources>`.

sources: the directories to import Nereid from, joined as in PYTHONPATH. A model with its own module
`nereid` needs its own environment (EXECUTION_ENV_PATH).
"""

# layout: not compiled, a program

import os
import sys
from functools import partial

_SOURCES = sys.argv.pop().split(os.pathsep)

if __name__ == "__main__":
    sys.path[:1] = _SOURCES
    from nereid_executor.backends.python import worker_site
    from nereid_executor.backends.python.direct.stream_server import DirectServer
    from nereid_executor.backends.python.worker_site.nereid_worker.runtime import process
    from nereid_executor.backends.python.worker_site.nereid_worker.runtime.worker import run_worker

    # Models find the API's modules here as in any other worker. They find Nereid's modules only if
    # Nereid is installed.
    sys.path[: len(_SOURCES)] = [worker_site.__path__[0]]
    process.main(partial(run_worker, stream_server=DirectServer))
