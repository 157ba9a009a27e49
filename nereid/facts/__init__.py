"""Facts about a mesh and its models, and statements about these facts in words."""

# layout: pure
