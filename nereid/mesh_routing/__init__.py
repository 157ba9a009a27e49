"""A mesh with several schedulers, as its gateways and executors use it: where each request goes.

routing_table decides, and is pure; mesh_router keeps the links and the pending requests; channels
are for control calls.
"""
