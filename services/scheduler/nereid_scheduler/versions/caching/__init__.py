"""The response cache: keys, lookups, stores, and single flight for identical requests."""
