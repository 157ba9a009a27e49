"""Sockets, time and what peers may use: addresses, listeners, back-off, stall detection, budgets,
bounded decompression.

Nothing here knows HTTP or gRPC.
"""
