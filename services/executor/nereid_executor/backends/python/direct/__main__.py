"""`python <this directory> <socket> <memory> <parent> <root>`: a worker that can serve a stream.

As nereid_worker.__main__, but in Nereid's own Python; root: the directory that the executor has
`nereid` from. What Nereid needs of itself is imported here, before the model: a model that has a
module or package called `nereid` finds this one instead, and needs an environment of its own
(EXECUTION_ENV_PATH) for that.
"""

import sys

_ROOT = sys.argv.pop()

if __name__ == "__main__":
    sys.path[0] = _ROOT
    from nereid_executor.backends.python import worker_site
    from nereid_executor.backends.python.direct.stream_server import DirectServer
    from nereid_executor.backends.python.worker_site.nereid_worker.runtime import process

    # As in any other worker: models find the API's modules there, and Nereid's only if installed.
    sys.path[0] = worker_site.__path__[0]
    process.main(DirectServer)
