"""Batchers: pure state machines that decide which queued requests run together, and when."""

# layout: compiled, covered, pure
