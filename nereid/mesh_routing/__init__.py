"""Routing of requests in a mesh with one or several schedulers, for gateways and executors."""
