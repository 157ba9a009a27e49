"""Clients' shared memory: system and CUDA regions, and the outputs that are written to them."""
