"""Models beyond memory: which of those that are loaded on demand are in memory, and where.

policy.py decides (pure), sizes.py knows how much memory models took (pure), on_demand.py loads and
unloads.
"""
