"""KServe v2 over gRPC: translates messages to calls of the data plane and back."""
