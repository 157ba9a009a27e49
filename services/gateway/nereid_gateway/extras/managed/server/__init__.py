"""HTTP server of the managed ports."""
