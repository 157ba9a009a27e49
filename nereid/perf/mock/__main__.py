"""`python -m nereid.perf.mock`: `nereid perf mock`."""

import sys

from nereid.perf.mock.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
