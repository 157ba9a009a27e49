"""Sockets, and limits for peers. The package does not depend on HTTP or gRPC."""
