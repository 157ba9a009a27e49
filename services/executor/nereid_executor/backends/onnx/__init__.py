"""The ONNX Runtime backend: sessions on the CPU, CUDA and TensorRT execution providers."""
