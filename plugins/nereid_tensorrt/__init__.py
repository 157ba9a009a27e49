"""The backend `tensorrt`, with optimization profiles and CUDA graphs."""
