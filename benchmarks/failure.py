"""Error of the benchmarks: its text is a single line for the user.

It is shown without a traceback.
"""


class BenchError(Exception):
    """Failure of a benchmark; the text is a single line."""
