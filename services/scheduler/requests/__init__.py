"""The life of a request: admission, validation, the queue entry, and its responses."""
