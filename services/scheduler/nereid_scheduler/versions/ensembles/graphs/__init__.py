"""Graphs of ensembles: their steps, the order in which these run, and their validation."""

# layout: covered, pure
