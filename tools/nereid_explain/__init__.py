"""`nereid explain`: why a model of a running mesh is not ready, or does not batch.

server.py asks a gateway over HTTP what any client may ask; nereid.facts, which is pure, makes
statements of the figures.
"""
