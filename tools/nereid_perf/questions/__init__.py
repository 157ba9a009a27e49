"""Questions about a server, such as its highest rate, as generators that do no I/O.

A question yields levels of load, receives their measurements, and returns its findings.
"""

# layout: covered, pure
