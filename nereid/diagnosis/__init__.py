"""Causes for which a model is slow, found in facts about a window of time."""

# layout: pure
