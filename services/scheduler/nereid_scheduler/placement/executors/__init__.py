"""Sessions of executors: what executors host, what ends a session, and what becomes of batches."""
