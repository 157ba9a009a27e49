"""The command `nereid explain`: says why a model of a mesh is not ready, or does not batch."""
