"""The process that compares copies. The argument is the descriptor of its socket."""

from __future__ import annotations

import sys

import uvloop

from nereid_gateway.extras.shadows.process import compare_until_closed

if __name__ == "__main__":
    uvloop.run(compare_until_closed(int(sys.argv[1])))
