"""The space of a search: settings of models, and the configurations for their values."""

# layout: pure
