"""The backend `tensorrt`, with optimization profiles and CUDA graphs.

It implements the public contract of backends (nereid.backends).
"""
