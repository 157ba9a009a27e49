"""`nereid perf`: measures any KServe v2 server. Imports no service; needs no server's packages."""
