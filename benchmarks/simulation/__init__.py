"""Core of the scheduler in virtual time: cost of a request and utilisation by the mesh's size.

The core is the real one, from a gateway's session to an instance's stream (admission, queues,
batchers, routers, the rate limiter, the loader). Streams and links are lists, and executors are
timers. Nothing waits for real, so that a mesh of 256 executors fits into one process.
"""
