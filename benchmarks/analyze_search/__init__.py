"""Search of `nereid analyze` beside an exhaustive one, on real models."""
