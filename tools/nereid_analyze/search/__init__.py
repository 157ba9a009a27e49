"""Searches for the best candidate, as generators that yield trials and get measurements.

Searches do no I/O: their callers measure.
"""

# layout: pure
