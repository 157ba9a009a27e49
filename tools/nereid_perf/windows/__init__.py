"""Analysis of the measured time: the warm-up, windows, and when figures are stable."""

# layout: pure
