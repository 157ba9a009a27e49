"""The process of a ComparisonProcess. The arguments are the descriptors of its sockets."""

# layout: not covered, a process

from __future__ import annotations

import asyncio
import sys

from nereid.comparison.process import ComparingReporter, serve_report

if __name__ == "__main__":
    asyncio.run(serve_report(sys.argv[1:], ComparingReporter))
