"""What can be varied: settings of models, and the configurations that their values make. Pure."""

# layout: pure
