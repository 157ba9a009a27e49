"""Questions about a server, such as its highest rate, as generators that do no I/O.

A question yields the level of load to measure next, receives the measurement, and finally returns
its findings.
"""

# layout: covered, pure
