"""From when to when is measured: warm-up, windows, and when figures are stable. Pure."""

# layout: pure
