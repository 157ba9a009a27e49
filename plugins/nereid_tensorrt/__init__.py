"""The TensorRT backend: engines, optimization profiles and CUDA graphs."""
