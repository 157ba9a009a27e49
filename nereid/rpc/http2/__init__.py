"""HTTP/2 (RFC 9113, RFC 7541) on one connection.

The module connection puts a connection together from the other modules. Only protocol, which runs a
connection on asyncio, and its part writer do I/O or read a clock. The package does not depend on
gRPC.
"""

# layout: compiled, covered
