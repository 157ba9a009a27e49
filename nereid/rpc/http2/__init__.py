"""HTTP/2 (RFC 9113, RFC 7541) on one connection, which connection.py puts together from its parts.

No I/O and no clock, except in protocol.py, which runs a connection on asyncio, and in its
writer.py. Nothing here knows gRPC.
"""

# layout: compiled, covered
