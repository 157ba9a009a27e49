"""The model's life in a worker: its start, its batches, and the requests that are still open."""
