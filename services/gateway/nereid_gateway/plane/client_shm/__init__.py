"""Shared memory that clients register: system and CUDA regions, and outputs written to them."""
