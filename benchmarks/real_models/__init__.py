"""Compares Nereid with a native Triton and a loop without a server, on real models.

The documentation is in benchmarks/README.md.
"""
