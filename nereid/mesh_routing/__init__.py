"""Routing of requests in a mesh with one or several schedulers, for gateways and executors.

The module routing_table decides where each request goes, and does no I/O. The module mesh_router
owns the links and the pending requests. Requests go over links; control calls go over channels.
"""
