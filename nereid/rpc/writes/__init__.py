"""Writes to sockets."""

# layout: compiled
