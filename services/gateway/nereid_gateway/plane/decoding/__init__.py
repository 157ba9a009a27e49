"""Decoding and encoding that no turn of the event loop may spend on one peer.

orjson and NumPy hold the interpreter's lock, so that a thread would not help: `pool` has processes
for what is large, and `turns` spreads what is neither large nor small over the turns of the loop.
Both serve the peers in turn (`fair_queue`). Knows no protocol: jobs are functions of the modules
that decode in the loop as well.
"""
