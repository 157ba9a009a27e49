"""HTTP server of the managed ports."""

# layout: compiled
