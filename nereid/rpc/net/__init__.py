"""Sockets, time and the resources of peers.

Addresses, listeners, back-off, stall detection, budgets, bounded decompression. Nothing here knows
HTTP or gRPC.
"""
