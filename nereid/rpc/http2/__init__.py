"""HTTP/2 (RFC 9113, RFC 7541) on one connection. Only `protocol` and `writer` do I/O."""

# layout: compiled, covered
