"""`python <this directory> <socket> <memory> <parent> <sources>`: a worker that can serve a stream.

As nereid_worker.__main__, but in Nereid's own Python; sources: the directories that the executor has
`nereid` and `nereid_executor` from, joined as in PYTHONPATH. What Nereid needs of itself is imported here, before the model: a model that has a
module or package called `nereid` finds this one instead, and needs an environment of its own
(EXECUTION_ENV_PATH) for that.
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

    # As in any other worker: models find the API's modules there, and Nereid's only if installed.
    sys.path[: len(_SOURCES)] = [worker_site.__path__[0]]
    process.main(DirectServer)
