"""Writes to sockets."""
