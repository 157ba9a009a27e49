"""Tensors' bytes in the gateway: memory, string elements, digests."""
