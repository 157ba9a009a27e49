"""The executor's side of the worker processes that Python models live in."""
