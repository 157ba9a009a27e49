"""The executor's own backends, and the registry of all backends."""
