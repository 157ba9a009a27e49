"""The scheduler's use of the response cache: keys, lookups, stores, and identical requests."""
