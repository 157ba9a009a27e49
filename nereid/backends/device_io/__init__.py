"""Copies of tensors to a GPU and back: pinned memory, streams, an input cache, captured graphs.

The package depends on no model runtime, and only cuda_device.py uses CUDA.
"""
