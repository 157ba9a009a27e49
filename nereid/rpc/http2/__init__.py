"""HTTP/2 (RFC 9113, RFC 7541) on one connection, without I/O and without a clock.

Nothing here knows gRPC, sockets or an event loop.
"""
