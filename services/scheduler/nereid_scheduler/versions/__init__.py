"""Model versions, which take a request from its queue to its response."""

# layout: compiled
