"""The rules for a complete configuration, worded as Triton words them.

Each module covers one part of a configuration. Nothing here changes a configuration;
`nereid.model_config.completion` fills in defaults.
"""
