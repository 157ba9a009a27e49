"""The command `nereid explain`: says why a model of a mesh is not ready, or does not batch.

server.py asks a gateway over HTTP, with requests that any client may send. nereid.facts turns the
figures into statements.
"""
