"""Requests of stateful models: which sequence a request belongs to, which slot of which instance a
sequence has, and which requests run together.

Pure: events and the time in, batches out. Triton's terms: a sequence is bound to a *slot* of an
instance from its first request (START) to its last (END); a sequence without a free slot waits in
the *backlog*. The strategies *direct* and *oldest* differ in what an instance's slots put into a
batch. No socket, clock or metric.
"""
