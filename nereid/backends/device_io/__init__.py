"""Copies of tensors to a GPU and back; only cuda_device.py uses CUDA."""
