"""The format of a record in the state."""

# layout: covered, pure
