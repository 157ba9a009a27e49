"""Limits in bytes on what one turn of the event loop decodes.

Measured: JSON and typed contents take 15 to 100 ns per byte, and 250 ns in the worst case.
"""

from __future__ import annotations

from typing import Final

# Requests of up to this size are decoded as soon as they arrive.
SMALL_BYTES: Final = 8192
# A decoder process decodes larger requests.
LARGE_BYTES: Final = 32768
# Larger jobs count as long. The process reserved for short jobs does not run them.
LONG_JOB_BYTES: Final = 262_144
# For a control call's message, unless it loads a model's files.
MAX_CONTROL_BYTES: Final = 65536
# Limit per turn. Small requests do not count.
TURN_BYTES: Final = 65536
