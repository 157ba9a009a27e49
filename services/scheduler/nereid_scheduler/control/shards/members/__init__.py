"""Members of a mesh with several schedulers, and which of them owns a model."""

# layout: covered, pure
