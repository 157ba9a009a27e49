"""The backend `pytorch` for TorchScript files, on the public contract (nereid.backends)."""
