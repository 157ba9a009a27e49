"""The executor: devices, backends, model instances.

The layers, from the lowest: settings, core, batch, backends, repository, instances, session, and
the modules of this folder, which assemble them. No layer imports a layer above it.
"""
