"""The layout of a binary trace context.

Version, trace id, span id, flags, then the text of W3C's `tracestate`, if there is one.
"""

# layout: not compiled, off the hot path

from typing import Final

# Size of a context without the tracestate.
CONTEXT_BYTES: Final = 26
# Slices of a context.
TRACE_ID: Final = slice(1, 17)
TRACE_STATE: Final = slice(CONTEXT_BYTES, None)


def with_flags(context: bytes, flags: int) -> bytes:
    """Return the context with other flags."""
    return context[:25] + bytes((flags,)) + context[TRACE_STATE]
