"""Routing of requests in a mesh with one or several schedulers, for gateways and executors.

Requests go over links; control calls go over channels.
"""
