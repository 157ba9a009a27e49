"""Bytes of tensors in the gateway: their memory, string elements and digests."""
