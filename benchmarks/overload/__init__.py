"""Mesh that is offered many times what it can serve.

The benchmark shows how much is served in time, how long that takes, what it does to memory, and how
soon it is over. It knows nothing of other servers.
"""
