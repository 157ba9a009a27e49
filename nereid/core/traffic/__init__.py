"""Shares of a model's traffic: versions' weights, and the keys by which callers stay together."""

# layout: covered, pure
