"""The life of a batch in an instance, from its arrival to its last response."""

# layout: covered
