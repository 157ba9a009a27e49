"""Routing in a mesh with one or several schedulers, as its gateways and executors use it.

routing_table decides where each request goes, and is pure; mesh_router keeps the links and the
pending requests; channels are for control calls.
"""
