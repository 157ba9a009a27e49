"""Sockets, and limits for the peers that connect to them.

The package has addresses, listeners, back-off, stall detection, byte budgets and bounded
decompression. It does not depend on HTTP or gRPC.
"""
