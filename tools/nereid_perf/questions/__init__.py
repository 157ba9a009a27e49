"""Questions about a server, such as its highest rate, as generators.

A question yields the level of load to measure next, receives the measurement, and finally returns
its findings. Questions do no I/O: the caller measures.
"""

# layout: covered, pure
