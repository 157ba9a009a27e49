"""gRPC over `nereid.rpc.http2`: calls, clients and servers.

Messages are opaque bytes: no module of this package interprets them.
"""
