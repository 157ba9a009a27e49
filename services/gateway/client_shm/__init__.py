"""Shared memory that clients register: system and CUDA regions, and outputs written into them."""
