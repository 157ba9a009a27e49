"""Requests that wait for an executor, or for the response to a request that a model makes."""

# layout: covered, pure
