"""Searches for the best candidate, as generators that yield trials and get measurements."""

# layout: pure
