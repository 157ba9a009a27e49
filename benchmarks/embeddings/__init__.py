"""Embeddings of texts by OpenAI's API, beside other servers and beside the loop without a server.

``python -m benchmarks.embeddings`` runs it.
"""
