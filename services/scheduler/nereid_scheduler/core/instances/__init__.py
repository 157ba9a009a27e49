"""A model instance as the scheduler sees it: its stream, its batches, and their order."""

# layout: compiled, covered, pure
