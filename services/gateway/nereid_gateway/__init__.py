"""The gateway: KServe v2 over HTTP and gRPC for clients.

Layers, from the ground up: core, server, plane, fronts, guards, settings, extras, and the modules
of this folder, which build them. No layer imports one above it.
"""
