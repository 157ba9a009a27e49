"""KServe v2 over gRPC: messages to calls of the data plane and back.

Both gRPC engines serve the handlers declared here; HTTP/2 itself is `nereid.rpc`.
"""
