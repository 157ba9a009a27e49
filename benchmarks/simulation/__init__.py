"""The scheduler's core in virtual time: what a request costs, and how busy executors are, by the
size of the mesh.

The core is the real one, from a gateway's session to an instance's stream (admission, queues,
batchers, routers, the rate limiter, the loader). Streams and links are lists, and executors are
timers. Nothing waits for real, so that a mesh of 256 executors fits into one process.
"""
