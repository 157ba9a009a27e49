"""A worker in any Python with numpy: `python <this directory> <socket> <memory> <parent>`.

socket and memory are open descriptors; parent is the executor's process id.
"""

import sys
from pathlib import Path

# From this directory, models can import the API's modules, but not the worker's own.
sys.path[0] = str(Path(__file__).resolve().parents[1])

if __name__ == "__main__":
    from nereid_worker.runtime import process
    from nereid_worker.runtime.worker import run_worker

    process.main(run_worker)
