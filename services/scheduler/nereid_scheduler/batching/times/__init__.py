"""Measured times of a version's batches: one table, which all policies read."""

# layout: compiled, covered, pure
