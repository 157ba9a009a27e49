"""The process that compares copies. The arguments are the descriptors of its sockets."""

from __future__ import annotations

import sys

import uvloop

from nereid.comparison.process import serve_report
from nereid_gateway.extras.shadows.process import ShadowReporter

if __name__ == "__main__":
    uvloop.run(serve_report(sys.argv[1:], ShadowReporter))
