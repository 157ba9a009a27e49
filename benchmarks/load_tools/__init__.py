"""Comparison of `nereid perf` with NVIDIA's perf_analyzer.

It shows what both say of the same server, and what they take for it.
"""
