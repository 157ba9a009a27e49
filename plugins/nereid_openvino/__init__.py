"""The backend `openvino`, on the public contract of backends (nereid.backends)."""
