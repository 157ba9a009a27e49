"""`nereid perf` beside NVIDIA's perf_analyzer: what both say of the same server, and what they take
for it.
"""
