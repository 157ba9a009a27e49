"""`nereid explain`: why a model of a running mesh is not ready, or does not batch.

server.py asks what any client may ask over HTTP; nereid.facts, pure, says what the figures mean.
"""
