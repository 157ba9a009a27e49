"""Copies of tensors to a GPU and back: pinned memory, streams, an input cache, captured graphs.

The package decides what is copied when, and which memory may be used again. It depends on no model
runtime, and only one of its files (cuda_device.py) uses CUDA. A backend that runs models implements
Session (pipeline.py).
"""
