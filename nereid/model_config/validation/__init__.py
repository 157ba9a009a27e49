"""Rules for a complete configuration. Their errors have Triton's texts.

Each module covers one part of a configuration. The rules never change a configuration;
`nereid.model_config.completion` fills in the defaults.
"""

# layout: covered, pure
