"""Space of a search: settings of models, and the configurations that their values make. Pure."""

# layout: pure
