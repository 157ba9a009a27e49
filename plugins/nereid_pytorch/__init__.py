"""The backend `pytorch`, TorchScript files, on the public contract of backends (nereid.backends)."""
