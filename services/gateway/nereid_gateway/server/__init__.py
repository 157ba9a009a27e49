"""The HTTP/1.1 server. Knows nothing of KServe."""

# layout: compiled
