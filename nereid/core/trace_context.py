"""The layout of a binary trace context: version, trace id, span id, flags."""

from typing import Final

CONTEXT_BYTES: Final = 26
# Of a context.
TRACE_ID: Final = slice(1, 17)
