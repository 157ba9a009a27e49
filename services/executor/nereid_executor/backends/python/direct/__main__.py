"""A worker that can serve a stream.

Usage: `python <this directory> <socket> <memory> <parent> <sources>`.

The first three arguments are those of nereid_worker.__main__. sources lists the directories that
the executor imports `nereid` and `nereid_executor` from, joined as in PYTHONPATH. The worker runs
in Nereid's own Python, and this file imports Nereid's modules before the model is loaded. If a
model has a module or package of its own called `nereid`, its imports find Nereid's module instead.
Such a model needs an environment of its own (EXECUTION_ENV_PATH).
"""

# layout: not compiled, a program

import os
import sys

_SOURCES = sys.argv.pop().split(os.pathsep)

if __name__ == "__main__":
    sys.path[:1] = _SOURCES
    from nereid_executor.backends.python import worker_site
    from nereid_executor.backends.python.direct.stream_server import DirectServer
    from nereid_executor.backends.python.worker_site.nereid_worker.runtime import process

    # Give sys.path the form that it has in any other worker. Models find the modules of the API
    # there, and Nereid's modules only if Nereid is installed.
    sys.path[: len(_SOURCES)] = [worker_site.__path__[0]]
    process.main(DirectServer)
