"""Rules for a complete configuration, which they never change. Errors have Triton's texts."""

# layout: covered, pure
