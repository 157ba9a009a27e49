"""When requests are sent, and whether the client kept to it. Pure."""

# layout: pure
