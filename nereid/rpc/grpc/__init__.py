"""gRPC over `nereid.rpc.http2`: calls, clients and servers.

Messages are opaque bytes here: no module knows their meaning.
"""
