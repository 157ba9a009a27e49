"""What runs the model: its start, its batches, the requests that it still has to respond to."""
