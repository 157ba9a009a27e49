"""Clients that send encoded requests, and check responses without decoding them.

A request needs only plain callbacks, and neither a task nor a future.
"""
