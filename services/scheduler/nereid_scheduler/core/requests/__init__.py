"""A request in the scheduler: its entry, sequence, trace, and frame."""

# layout: compiled, covered, pure
