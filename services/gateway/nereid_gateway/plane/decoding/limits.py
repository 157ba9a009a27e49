"""What a turn of the event loop may spend on one request, in bytes that have to be decoded.

By measurement: JSON and typed contents take 15 to 100 ns a byte, the worst of them 250.
"""

from __future__ import annotations

from typing import Final

# Decoded as soon as it arrives, without further thought.
SMALL_BYTES: Final = 8192
# What is larger is decoded by a decoder process.
LARGE_BYTES: Final = 32768
# Jobs of more than this are long: the process that is kept for the others does not run them.
LONG_JOB_BYTES: Final = 262_144
# Of a control call's message, but for one that loads a model's files.
MAX_CONTROL_BYTES: Final = 65536
# Of all requests that are not small, in one turn.
TURN_BYTES: Final = 65536
