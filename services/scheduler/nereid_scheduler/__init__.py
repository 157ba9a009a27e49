"""The scheduler: owns models, queues, batches and the choice of an instance.

Layers, from the ground up: core, batching, versions, placement, control, admission, pages, and the
modules of this folder, which build them. No layer imports one above it.
"""
