"""A request in the scheduler: its entry, sequence, trace, and frame."""

# layout: covered, pure
