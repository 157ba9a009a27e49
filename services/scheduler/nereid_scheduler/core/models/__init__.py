"""Models by name: dependencies, life cycle, overrides, revisions, and what is to be served."""

# layout: covered, pure
