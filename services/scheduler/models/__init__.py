"""Model versions: loading, states, reloading, and the catalogue of the models in service.

A version owns its queue and its free instances. Files on disk belong to `repository`.
"""
