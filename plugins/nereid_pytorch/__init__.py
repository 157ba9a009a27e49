"""The PyTorch backend: TorchScript files."""
