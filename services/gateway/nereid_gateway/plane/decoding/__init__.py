"""Decoding and encoding that would take too long in one turn of the event loop.

orjson and NumPy hold the interpreter's lock, so that a thread would not help: `pool` has processes
for large requests, and `turns` spreads medium ones over the turns of the loop. Both serve the peers
in turn (`fair_queue`). This package knows no protocol: jobs are functions of the modules that also
decode in the loop.
"""
