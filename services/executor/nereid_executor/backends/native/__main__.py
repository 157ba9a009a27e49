"""The fork server of a backend: `python <this directory> <socket> <backend> <sources>`.

sources: the directories to import Nereid from, joined as in PYTHONPATH.
"""

import os
import sys

if __name__ == "__main__":
    sys.path[:1] = sys.argv[3].split(os.pathsep)
    from nereid_executor.backends.native import fork_server

    fork_server.main()
