"""The scheduler's core in virtual time: request cost and utilisation for sizes of meshes.

The core is the real code, from a gateway's session to an instance's stream (admission, queues,
batchers, routers, the rate limiter, the loader). Streams and links are lists, and executors are
timers. Nothing waits for real, so that a mesh of 256 executors fits into one process.
"""
