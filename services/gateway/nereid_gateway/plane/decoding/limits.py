"""Limits in bytes on what one turn of the event loop decodes.

Measured: JSON and typed contents take 15 to 100 ns per byte, and 250 ns per byte in the worst case.
"""

from __future__ import annotations

from typing import Final

# A request of at most this size is decoded as soon as it arrives.
SMALL_BYTES: Final = 8192
# A decoder process decodes requests that are larger than this.
LARGE_BYTES: Final = 32768
# A job that is larger than this counts as long. The process that is reserved for short jobs does
# not run long jobs.
LONG_JOB_BYTES: Final = 262_144
# Maximum size of a control call's message, unless it loads a model's files.
MAX_CONTROL_BYTES: Final = 65536
# Maximum total size of the requests that are decoded in one turn. Small requests do not count.
TURN_BYTES: Final = 65536
