"""Searches for the next candidate, as generators: each yields a trial and gets its measurement.

They know neither server nor clock.
"""

# layout: pure
