"""Embeddings and decisions by OpenAI's API, beside other servers and the loop without a server.

``python -m benchmarks.embeddings`` runs it.
"""
