"""The rules that a complete configuration must satisfy, worded as Triton words them.

Each module covers one part of a configuration. Nothing here changes a configuration; filling in
defaults is `nereid.model_config.completion`.
"""
