"""The backend `openvino`, which implements the public contract of backends (nereid.backends)."""
