"""Load tool `nereid perf`, which measures any KServe v2 server.

The package imports no service of Nereid, and needs none of a server's dependencies.
"""
