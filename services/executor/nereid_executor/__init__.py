"""The executor.

The layers, from the lowest: settings, core, batch, backends, repository, instances, session, and
the modules of this folder. No layer imports a layer above it.
"""
