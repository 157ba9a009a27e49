"""Runs models that load native code of others in confined worker processes (--sandbox-models)."""
