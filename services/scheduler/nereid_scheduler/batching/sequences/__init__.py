"""Batching for stateful models, whose requests belong to sequences.

Decides which sequence a request belongs to, which slot of which instance a sequence has, and which
requests run together. Triton's terms: a sequence is bound to a *slot* of an instance from its first
request (START) to its last (END); a sequence without a free slot waits in the *backlog*. The
strategies *direct* and *oldest* differ in what an instance's slots put into a batch.

Pure: events and the time in, batches out. Knows no socket, clock or metric.
"""

# layout: covered, pure
