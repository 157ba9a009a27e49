"""Estimates the rates of candidates that were not measured, and how certain the estimates are."""

# layout: pure
