"""gRPC over `nereid.rpc.http2`. No module of this package interprets messages."""
