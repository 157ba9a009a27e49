"""The HTTP server of the managed endpoints' ports."""
