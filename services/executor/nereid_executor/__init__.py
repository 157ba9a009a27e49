"""The executor: devices, backends, model instances.

Layers, from the ground up: settings, core, batch, backends, repository, instances, session, and
the modules of this folder, which build them. No layer imports one above it.
"""
