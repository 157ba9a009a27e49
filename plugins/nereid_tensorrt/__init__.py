"""The backend `tensorrt`: engines, optimization profiles and CUDA graphs, on nereid.backends."""
