"""Batching for stateful models, whose requests belong to sequences.

The modules decide which sequence a request belongs to, which slot of which instance a sequence has,
and which requests run together. The terms are Triton's: a sequence has a *slot* of an instance from
its first request (START) to its last (END). If no slot is free, the sequence waits in the
*backlog*. The strategies are *direct*, where a batch has one row for each slot of an instance, and
*oldest*, where a dynamic batcher forms batches of the sequences' next requests.

The package is pure: events and the time are arguments, and batches are the result. It knows no
socket, clock or metric.
"""

# layout: covered, pure
