"""A worker that runs in any Python with numpy.

Usage: `python <this directory> <socket> <memory> <parent>`.

socket and memory are file descriptors that the executor left open for the worker: the connection to
the executor, and shared memory in which the worker notes the batch that it executes. parent is the
executor's process id.
"""

import sys
from pathlib import Path

# Let models import the API's modules, which are in this directory, but not the worker's own
# modules.
sys.path[0] = str(Path(__file__).resolve().parents[1])

if __name__ == "__main__":
    from nereid_worker.runtime import process

    process.main()
