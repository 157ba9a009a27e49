"""How texts become a model's tensors, and how its outputs become vectors, scores, labels and texts.

`read_mapping` is a pure function of a model's configuration and files.
"""
