"""The one error of the benchmarks: its text is a single line for the user; carries no traceback."""


class BenchError(Exception):
    pass
