"""Batching for stateful models, whose requests belong to sequences.

As on Triton, a sequence has a *slot* of an instance from START to END. Without a free slot, it
waits in the *backlog*. Strategy *direct*: a batch has one row per slot. Strategy *oldest*: a
dynamic batcher forms batches of the sequences' next requests.
"""

# layout: covered, pure
