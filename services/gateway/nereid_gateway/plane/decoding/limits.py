"""Limits in bytes on what one turn of the event loop decodes.

Measured: JSON and typed contents take 15 to 100 ns per byte, and 250 ns per byte in the worst case.
"""

from __future__ import annotations

from typing import Final

# A request of at most this size is decoded as soon as it arrives.
SMALL_BYTES: Final = 8192
# A larger request is decoded by a decoder process.
LARGE_BYTES: Final = 32768
# A larger job counts as long. The process that is reserved for short jobs does not run it.
LONG_JOB_BYTES: Final = 262_144
# Maximum size of a control call's message, unless it loads a model's files.
MAX_CONTROL_BYTES: Final = 65536
# Maximum size of all requests together, except small ones, that are decoded in one turn.
TURN_BYTES: Final = 65536
