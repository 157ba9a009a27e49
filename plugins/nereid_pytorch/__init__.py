"""The backend `pytorch` for TorchScript files; it implements the contract in nereid.backends."""
