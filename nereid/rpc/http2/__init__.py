"""HTTP/2 (RFC 9113, RFC 7541) on one connection: connection.py puts it together from its parts.

Without I/O and without a clock but for protocol.py, which runs it on asyncio. Nothing here knows
gRPC.
"""

# layout: compiled
