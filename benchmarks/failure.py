"""The error of the benchmarks. Its text is a single line for the user.

The error is shown without a traceback.
"""


class BenchError(Exception):
    """Failure of a benchmark; the text is a single line."""
