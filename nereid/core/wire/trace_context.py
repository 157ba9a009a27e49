"""Layout of a binary trace context.

A context consists of version, trace id, span id and flags, followed by the text of W3C's
`tracestate` if there is one.
"""

# layout: not compiled, off the hot path

from typing import Final

# Size in bytes of a context without its tracestate.
CONTEXT_BYTES: Final = 26
# Positions of the parts of a context.
TRACE_ID: Final = slice(1, 17)
TRACE_STATE: Final = slice(CONTEXT_BYTES, None)


def with_flags(context: bytes, flags: int) -> bytes:
    """Return the context with other flags."""
    return context[:25] + bytes((flags,)) + context[TRACE_STATE]
