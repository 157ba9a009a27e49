"""The commands `nereid explain` and `nereid doctor`: why a model is not ready, or slow."""
