"""Policies of batching: how large a batch may be, how long it waits, and who is refused."""

# layout: compiled, covered, pure
