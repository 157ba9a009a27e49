"""Rules for a complete configuration; errors have Triton's texts.

Each module covers one part of a configuration. Nothing here changes a configuration;
`nereid.model_config.completion` fills in defaults.
"""

# layout: covered, pure
