"""The gateway serves KServe v2 to clients over HTTP and gRPC.

Its layers, from the lowest up, are: core, server, plane, fronts, guards, settings, extras, and the
modules of this folder, which construct the parts. No layer imports one above it.
"""
