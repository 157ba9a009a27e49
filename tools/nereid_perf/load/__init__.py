"""Times at which requests are sent, and whether the client kept to them. Pure."""

# layout: pure
