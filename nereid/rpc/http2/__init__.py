"""HTTP/2 (RFC 9113, RFC 7541) on one connection.

The module `connection` puts a connection together from the other modules. Only two modules do I/O
or read a clock: `protocol`, which runs a connection on asyncio, and `writer`, which `protocol`
uses. The package does not depend on gRPC.
"""

# layout: compiled, covered
