"""Handlers of the HTTP routes.

They turn a body into a request to the mesh, and the result into JSON.
"""
