"""Layout of a binary trace context: version, trace id, span id, flags, `tracestate`."""

# layout: not compiled, off the hot path

from typing import Final

# Without tracestate.
CONTEXT_BYTES: Final = 26
# Bytes of a tracestate.
MAX_TRACE_STATE: Final = 512
TRACE_ID: Final = slice(1, 17)
TRACE_STATE: Final = slice(CONTEXT_BYTES, None)


def with_flags(context: bytes, flags: int) -> bytes:
    """Return the context with other flags."""
    return context[:25] + bytes((flags,)) + context[TRACE_STATE]
