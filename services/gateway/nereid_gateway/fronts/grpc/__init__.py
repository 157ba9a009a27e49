"""KServe v2 over gRPC: translates messages to calls of the data plane and back.

Both gRPC engines serve the handlers that are declared here. HTTP/2 itself is in `nereid.rpc`.
"""
