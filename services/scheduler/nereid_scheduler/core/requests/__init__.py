"""Requests in the scheduler: their entries, sequences, traces and serialised batches."""

# layout: covered, pure
