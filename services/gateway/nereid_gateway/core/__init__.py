"""Value types of the gateway: request heads, tensors, timings, and the identity of clients."""
