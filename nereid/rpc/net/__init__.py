"""Sockets, and limits for the peers that connect. It does not depend on HTTP or gRPC."""
