"""Estimate of what a candidate that was not measured would reach, and how sure that is. Pure."""

# layout: pure
