"""Sockets and time: addresses, listeners, the asyncio transport, back-off, stall detection.

Nothing here knows HTTP or gRPC.
"""
