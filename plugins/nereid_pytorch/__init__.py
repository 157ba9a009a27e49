"""The backend `pytorch`, TorchScript files, on the public contract (nereid.backends)."""
