"""Rules for a complete configuration. Their errors have Triton's texts.

The rules never change a configuration.
"""

# layout: covered, pure
