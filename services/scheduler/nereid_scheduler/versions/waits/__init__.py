"""Requests that wait: for an executor, or for the response to a nested call."""

# layout: covered, pure
