"""The process of a ComparisonProcess. The argument is the descriptor of its socket."""

# layout: not covered, a process

from __future__ import annotations

import asyncio
import sys

from nereid.comparison.process import compare_until_closed

if __name__ == "__main__":
    asyncio.run(compare_until_closed(int(sys.argv[1])))
