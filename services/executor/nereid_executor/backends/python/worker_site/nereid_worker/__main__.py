"""`python <this directory> <socket> <memory> <parent>`: a worker in any Python that has numpy.

socket and memory are descriptors that the executor left open: the connection, and shared memory for
the number of the last batch that the worker began. parent is the executor's process id.
"""

import sys
from pathlib import Path

# This directory has the API's modules for models, and none of the worker's own modules.
sys.path[0] = str(Path(__file__).resolve().parents[1])

if __name__ == "__main__":
    from nereid_worker.runtime import process

    process.main()
