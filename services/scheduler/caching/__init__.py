"""The response cache: keys, look-ups, stores, and single flight for identical requests."""
