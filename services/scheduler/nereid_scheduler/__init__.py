"""The scheduler: decides which models are loaded, queues requests, and sends batches to instances.

The layers, from the bottom up, are core, batching, versions, placement, control, admission and
pages. No layer imports from a layer above it. The modules of this folder create all layers.
"""
