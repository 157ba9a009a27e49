"""Counts of models that outlive the schedulers that counted."""

# layout: pure
