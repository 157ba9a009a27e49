"""The process of copies. The arguments are the descriptors of its sockets."""

from __future__ import annotations

import sys

import uvloop

from nereid.comparison.process import serve_report
from nereid_adopt.copies.process import Copies

if __name__ == "__main__":
    uvloop.run(serve_report(sys.argv[1:], Copies))
