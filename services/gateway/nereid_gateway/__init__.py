"""The gateway serves KServe v2 to clients over HTTP and gRPC.

Its layers, from the lowest up: core, server, plane, fronts, guards, settings, extras, and this
folder's modules. No layer imports one above it.
"""
