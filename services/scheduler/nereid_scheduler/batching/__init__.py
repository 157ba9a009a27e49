"""Batchers: they decide which queued requests run together, and when.

Pure state machines: events and the present time are arguments, batches are the result. Nothing here
knows a clock, a socket or a metric.
"""

# layout: compiled, covered, pure
