"""Comparison of `nereid perf` with NVIDIA's perf_analyzer.

The comparison shows what both tools measure on the same server, and what CPU time they use.
"""
