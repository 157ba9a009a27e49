"""Spans that are measured: warm-up, windows, and when figures are stable. Pure."""

# layout: pure
