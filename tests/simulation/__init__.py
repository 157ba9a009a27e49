"""A mesh in virtual time: the scheduler's real core, with executors, links and faults by a seed.

One process, one thread, no sockets; time passes when nothing is left to do. A seed gives the same
history again.
"""
