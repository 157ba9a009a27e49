"""Entry point `python -m nereid_perf.mock`, the same as `nereid perf mock`."""

import sys

import nereid.safe_path  # noqa: F401 - before anything that may lie in the folder of the start
from nereid_perf.mock.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
