"""A worker: the process in which one instance of a Python model lives."""
