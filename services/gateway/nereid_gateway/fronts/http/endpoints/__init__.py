"""Handlers of the HTTP routes: a call's body to a request of the mesh, and its result to JSON."""
