"""Requests in the scheduler: their entries, sequences, traces and serialised batches."""

# layout: compiled, covered, pure
