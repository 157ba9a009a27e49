"""Model versions: loading, states, replacement, and the catalogue of what is served.

A version owns its queue and its free instances. What lies on disk belongs to `repository`.
"""
