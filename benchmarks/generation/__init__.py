"""Streamed texts by OpenAI's API, beside the same model's gRPC streams.

``python -m benchmarks.generation`` runs it.
"""
