"""Models by name: dependencies, life cycle, overrides, revisions, and what is desired of each."""

# layout: covered, pure
