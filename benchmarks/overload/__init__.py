"""A mesh that is offered many times the load that it can serve.

The benchmark shows how many requests are served in time, their latencies, the effect on memory, and
how fast the mesh recovers. The benchmark does not use other servers.
"""
