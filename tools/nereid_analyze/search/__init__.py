"""Searches for the best candidate. A search is a generator: it yields trials and gets measurements.

Searches do no I/O: their callers measure.
"""

# layout: pure
