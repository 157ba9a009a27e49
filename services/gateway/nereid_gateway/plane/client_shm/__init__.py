"""Shared memory of clients: system and CUDA regions, and outputs that are written to them."""
