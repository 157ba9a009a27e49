"""The scheduler's view of a model instance: its stream, its batches and their order."""

# layout: compiled, covered, pure
