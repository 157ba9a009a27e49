"""`python <this directory> <socket> <memory> <parent> <sources>`: a worker that can serve a stream.

The arguments are those of nereid_worker.__main__, and sources: the directories that the executor
imports `nereid` and `nereid_executor` from, joined as in PYTHONPATH. The worker runs in Nereid's
own Python, and imports Nereid's own modules here, before the model. So a model that has a module or
package called `nereid` finds Nereid's instead; it needs an environment of its own
(EXECUTION_ENV_PATH).
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

    # The path is that of any other worker: models find the API's modules there, and Nereid's only
    # if it is installed.
    sys.path[: len(_SOURCES)] = [worker_site.__path__[0]]
    process.main(DirectServer)
