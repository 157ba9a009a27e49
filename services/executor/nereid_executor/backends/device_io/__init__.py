"""Tensors to a GPU and back: pinned staging memory, streams, an input cache, captured graphs.

Decides what is copied when, and which memory may be used again; knows no model runtime, and CUDA in
one file alone (cuda_device.py). What runs a model implements Session (pipeline.py).
"""
