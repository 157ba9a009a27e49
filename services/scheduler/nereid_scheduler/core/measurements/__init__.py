"""Times and counts of executions and requests."""

# layout: compiled, pure
