"""Load tool `nereid perf`, which measures any KServe v2 server.

It imports no service, and needs no server's packages.
"""
