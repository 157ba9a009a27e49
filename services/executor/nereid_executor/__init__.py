"""The executor. No layer imports a layer above it.

From the lowest: settings, core, batch, backends, repository, instances, session, this folder.
"""
