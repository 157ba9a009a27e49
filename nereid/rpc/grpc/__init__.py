"""gRPC over `nereid.rpc.http2`: calls, clients and servers.

Handlers and messages are bytes here; nothing knows what they mean.
"""

# layout: compiled
