"""Copies of tensors to a GPU and back: pinned memory, streams, an input cache, captured graphs.

The package decides what is copied when, and which memory may be used again. It knows no model
runtime, and CUDA in one file alone (cuda_device.py). A backend that runs models implements Session
(pipeline.py).
"""
