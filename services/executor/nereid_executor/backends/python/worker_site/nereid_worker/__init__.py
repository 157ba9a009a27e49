"""The program of a worker: the process that runs one instance of a Python model."""
