"""Decoding and encoding that would take too long in one turn of the event loop.

orjson and NumPy hold the interpreter's lock, so a thread would not help. `pool` has processes for
large requests, and `turns` spreads medium requests over several turns of the loop. Both let the
clients take turns (`fair_queue`). This package knows no protocol: a job is a function of the module
that also decodes on the loop.
"""
