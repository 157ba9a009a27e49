"""A mesh in virtual time: real gateways, schedulers, cache and executors' sessions, as processes on
a simulated network, with faults by a seed.

One process, one thread, no sockets; time passes when nothing is left to do. A seed gives the same
history again.
"""
