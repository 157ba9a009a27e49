"""Clients that send requests as they are and check responses, but do not decode them.

Each request costs plain callbacks: no task, no future. Nothing here decides when a request is sent.
"""
