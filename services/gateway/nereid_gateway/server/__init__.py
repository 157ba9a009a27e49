"""The HTTP/1.1 server, which does not depend on KServe."""

# layout: compiled
